"""A stand-in for the module pynvml: a box of GPUs described by a table."""

from types import SimpleNamespace


class NVMLError(Exception):
    """As pynvml raises."""


class FakeNvml:
    """Two GPUs on one PCIe switch with two NVLinks between them, a third one behind the other socket on a switch."""

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 6
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    NVML_AFFINITY_SCOPE_NODE = 0

    def __init__(self, count: int = 3, driver: bool = True) -> None:
        self.count, self.driver, self.open = count, driver, 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:
        return (b"Tesla V100-SXM2-16GB", "Tesla V100-SXM2-16GB", "NVIDIA H100 80GB HBM3")[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=(16, 16, 80)[handle] * 2**30)

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0")

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return 10 if {one, other} == {0, 1} else 50

    def nvmlDeviceGetNumaNodeId(self, handle: int) -> int:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetMemoryAffinity(self, handle: int, words: int, scope: int) -> list[int]:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return (3, 3, 5)[handle]

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return 16

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link > 3:
            raise NVMLError("Invalid Argument")
        return int(link < 2 or handle == 2)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return 2 if handle == 2 else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=b"00000000:FF:00.0" if handle == 2 else f"00000000:{1 - handle:02X}:00.0".encode())
