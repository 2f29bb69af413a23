"""Inboxes: what is put is taken once, in whatever order, and nobody waits for what will not come."""

import gc
import random
import threading
import time
import weakref

import pytest
import torch

from dlplacer.runtime.executor.hand_over import EMPTY, AbortedError, Inbox


@pytest.mark.parametrize("seed", range(8))
def test_everything_arrives_in_whatever_order_it_is_sent(seed: int) -> None:
    chooser, count = random.Random(seed), 300
    inbox, tensors = Inbox(count), [torch.tensor(number) for number in range(count)]
    wanted, sent = list(range(count)), [list(range(0, count, 2)), list(range(1, count, 2))]
    for numbers in (wanted, *sent):
        chooser.shuffle(numbers)

    def send(numbers: list[int]) -> None:
        for number in numbers:
            if number % 37 == 0:
                time.sleep(1e-4)
            inbox.put(number, tensors[number])

    senders = [threading.Thread(target=send, args=(numbers,), daemon=True) for numbers in sent]
    for sender in senders:
        sender.start()
    for number in wanted:
        if inbox.slots[number] is EMPTY:
            inbox.wait(number)
        assert inbox.take(number) is tensors[number]
    for sender in senders:
        sender.join(60)
    assert all(slot is EMPTY for slot in inbox.slots)


def test_none_is_something_that_arrives() -> None:
    inbox = Inbox(1)
    inbox.put(0, None)
    inbox.wait(0)
    assert inbox.take(0) is None


def test_what_is_taken_is_not_kept() -> None:
    inbox, tensor = Inbox(1), torch.ones(2)
    seen = weakref.ref(tensor)
    inbox.put(0, tensor)
    inbox.take(0)
    del tensor
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("asleep", [True, False])
def test_an_abort_ends_the_wait_for_what_does_not_come(asleep: bool) -> None:
    inbox, ended = Inbox(2), threading.Event()
    inbox.put(1, None)

    def wait() -> None:
        with pytest.raises(AbortedError):
            inbox.wait(0)
        ended.set()

    waiting = threading.Thread(target=wait, daemon=True)
    if asleep:
        waiting.start()
        while inbox._awaited != 0:
            time.sleep(1e-4)
    inbox.abort()
    inbox.abort()
    if not asleep:
        waiting.start()
    assert ended.wait(60)
    inbox.wait(1)  # what is there can still be taken
    waiting.join(60)


# A core that waits must be free for others: a long wait takes hardly any processor time.
def test_a_long_wait_does_not_burn_a_core() -> None:
    inbox, used = Inbox(1), []

    def wait() -> None:
        begin = time.thread_time()
        inbox.wait(0)
        used.append(time.thread_time() - begin)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    time.sleep(0.3)
    inbox.put(0, None)
    waiting.join(60)
    assert used[0] < 0.1
