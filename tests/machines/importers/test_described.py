"""Machines in words, and in a TOML file."""

from pathlib import Path

import pytest

import dlplacer as dp
from dlplacer.core.errors import DlplacerError, FileFormatError, InputError


def test_a_line_of_text_has_the_figures_of_the_device_table() -> None:
    box = dp.new_topology("2x RTX 3090, rtx3060, 64 GB DDR5-5600", link="pcie4")
    assert [device.type for device in box.devices] == ["RTX3090", "RTX3090", "RTX3060", "2xDDR5-5600"]
    assert [device.memory_bytes for device in box.devices] == [24 * 2**30, 24 * 2**30, 12 * 2**30, 64 * 2**30]
    # Two channels of 8 bytes at 5.6 GT/s.
    assert box.device("ram").memory_bytes_per_s == pytest.approx(89.6e9)
    assert {link.bytes_per_s for link in box.links} == {24e9, 89.6e9}


def test_hosts_meet_over_the_network() -> None:
    boxes = dp.new_topology("M2Max 96GB; RTX4090, 64 GB DDR5-5600", network="1 Gbit/s, 200us")
    assert {device.id for device in boxes.devices} == {"host0-gpu0", "host1-gpu1", "host1-ram"}
    network = [link for link in boxes.links if link.target == "network"]
    assert [link.bytes_per_s for link in network] == [0.125e9] * 2
    assert sum(link.latency_s for link in network) == pytest.approx(200e-6)


@pytest.mark.parametrize(
    ("words", "named"),
    [("RTX3900", "RTX3090"), ("RTX3090; RTX4090", "network"), ("M2Max", "memory"), ("0x RTX3090", "0x RTX3090")],
)
def test_a_mistake_says_what_to_write(words: str, named: str) -> None:
    with pytest.raises(DlplacerError) as raised:
        dp.new_topology(words)
    assert named in str(raised.value)


def test_modules_of_memory_add_up() -> None:
    box = dp.new_topology("RTX3090, 2x 64 GB DDR5-5600")
    assert box.device("ram").memory_bytes == 128 * 2**30


@pytest.mark.parametrize(("option", "value"), [("link", "pcie9"), ("link", "pcie4x99"), ("network", "-5 GB/s")])
def test_a_number_that_cannot_be_names_its_option(option: str, value: object) -> None:
    words = "RTX3090; RTX4090" if option == "network" else "RTX3090, RTX3060"
    with pytest.raises(DlplacerError) as raised:
        dp.new_topology(words, **{option: value})  # type: ignore[arg-type]
    assert str(raised.value).startswith(option)


def test_a_toml_file_says_the_same_and_memory_in_use_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    path.write_text('name = "box"\nhosts = ["2x RTX3090", "RTX4090"]\nnetwork = "10gbe"\n[used]\nRTX3090 = "2 GiB"\n')
    box = dp.new_topology(path)
    told = dp.new_topology("2x RTX3090; RTX4090", network="10gbe", used=["RTX3090=2 GiB"])
    assert (box.devices, box.links, box.name) == (told.devices, told.links, "box")
    assert [device.memory_bytes for device in box.devices] == [22 * 2**30, 22 * 2**30, 24 * 2**30]
    for text in ("hosts = 3", "[", 'hosts = ["RTX3090"]\ncolour = "red"', 'hosts = ["RTX3090"]\nused = 3'):
        path.write_text(text)
        with pytest.raises(FileFormatError, match="write hosts ="):
            dp.new_topology(path)
    for used in (["gpu7=1GiB"], ["gpu0=-1GiB"], ["24 GiB"]):
        with pytest.raises(InputError, match="used"):
            dp.new_topology("RTX3090, RTX4090", used=used)
