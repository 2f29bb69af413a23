"""The sub-commands: names, options and actions."""

from typing import Any

import dlplacer as dp
from dlplacer.cli import actions
from dlplacer.cli.parser import Command, Given

_HELPS = """
capture: Capture a model's step as a graph, without allocating anything.
solve: Find the plan of least step time, with a lower bound and a gap.
check: Check a plan against every rule of the problem.
compare: Compare all methods on one problem: step time, speedup, gap to the best lower bound, time.
show: Show a plan as a table, pictures, a Chrome trace or a page.
explain: Explain a plan's step time, and rank the changes that would shorten it by gain and bound.
run: Run a plan on devices of this machine, and compare prediction and measurement.
profile: Time every op of a model on devices of this machine.
selftest: Test the runtime on devices of this machine: numbers, races, links, issue costs, steps of Inception-V3.
topology: Detect this machine, show a topology, describe one in words, or import one from another tool.
topology detect: GPUs (nvidia-smi) or, without any, the CPU cores of this host
topology show: a table, and a picture
topology new: from words such as 2x RTX3090, RTX3060, 64 GB DDR5-5600
topology import: nvidia-smi topo -m text, NCCL or RCCL topology XML, node-link JSON, or dnn-partitioning workload
graph: Import a graph from another tool.
graph import: a workload of msr-fiddle/dnn-partitioning
groups: Group layers whose parameters (forward) or gradients (backward) are sent together between devices.
epochs: Measure the epochs that every batch size needs, with workers emulated on one device, for `dlplacer hybrid`.
hybrid: Compare data parallelism, model parallelism and both on N devices by step time x steps x epochs.
pipeline: Cut a model into stages for pipeline parallelism: stages, schedule, bubble, speedup.
fit: Assign the layers of a language model to unequal devices: tokens per second, a proof, flags to paste.
export: Print a plan of `dlplacer fit` as another runtime's flags, variables or tables; accelerate takes any plan.
advise: Advise on mini-batch and recomputation, GPUs for a speedup, or servers whose load computation hides.
advise minibatch: mini-batch of least training time in a device's memory
advise gpus: GPUs for a speedup, or the overhead that an efficiency allows
advise servers: servers or loaders that hide a load behind computation
list: List the names that dlplacer knows: graphs, topologies, models, methods, devices, targets.
"""

_EXAMPLES = """
capture dlplacer.models:inception_v3 -o graph.json  # forward and backward, batch 32
capture my_model:build --batch-size 8 --optimizer adam -o graph.json  # my_model.py returns a dlplacer.Job
capture my_model:Net --input float32:8x3x224x224 -o graph.json  # a bare module, as inference
solve inception_v3-train dgx1-v100-2gpu -o plan.json  # a graph and a machine by name; see dlplacer list
solve my_model:build my_box.json --batch-size 8 --time-limit 5min -o plan.json  # your own model and machine
solve model.onnx pcie-4gpu --dim batch=8  # an ONNX file
solve graph.json pcie-4gpu --pin embedding=gpu0 --colocate 'decoder.*' -o plan.json  # fix where these ops run
check plan.json  # exit code 5 if it breaks a rule
compare inception_v3-train dgx1-v100-2gpu --time-limit 20s  # every method
compare graph.json pcie-4gpu --methods ilp,heft,min-cut --html methods.html  # some of them, with a page
show plan.json --gantt gantt.png --memory memory.png  # pictures; also .svg and .pdf
show plan.json --html plan.html --trace trace.json  # a page, and a trace for ui.perfetto.dev
show plan.json --csv ops.csv  # ops.csv and ops-transfers.csv
explain plan.json  # critical path, bounds, idle devices; then ten seconds of solving with one change
explain plan.json --budget 0  # the figures alone, without solving
explain plan.json --why fc --budget 20s  # the step if this op ran elsewhere
run plan.json --devices cpu:0,cpu:1 --gantt run.png  # a plan of one of dlplacer's own models, on two cores
run plan.json my_model:build --devices cuda:0,cuda:1  # a plan of your own model, one process per GPU
profile dlplacer.models:inception_v3 --device cpu:0,cpu:1 --batch-size 8 -o graph.json  # two cores, both busy
profile my_model:build --device cuda:0 --calibration v100.json  # keep the times for other models
selftest --devices cpu:0,cpu:1 --no-steps  # numbers, races and links: less than a minute
topology new "2x RTX3090, RTX3060, 64 GB DDR5-5600" --link pcie4 -o box.json  # a machine in words
topology detect --measure -o box.json  # this machine, with timed links
topology show dgx1-v100-8gpu --picture dgx1.png  # a table and a picture
topology import topo.txt --type V100 -o box.json  # the output of nvidia-smi topo -m
graph import bert24_inference.json -o graph.json  # a workload of msr-fiddle/dnn-partitioning
groups inception_v3-train pcie-4gpu --direction backward --cap '25 MiB'  # none larger than 25 MiB
epochs my_training:train --batches 1,2,4,8 --at-most 0.1 -o epochs.json  # until the loss is at most 0.1
hybrid inception_v3-train dgx1-v100-8gpu --devices 64 --epochs epochs.json --network 12.5GB/s  # boxes of eight
hybrid inception_v3-train dgx1-v100-2gpu --devices 256 --scaling-efficiency 1 --speedup 2=1.32  # inputs of the paper
pipeline dlplacer.models:gnmt dgx1-v100-4gpu  # the best stages, micro-batches and schedule
pipeline my_model:build pcie-4gpu -o plan.json  # a plan for dlplacer run
fit config.json "2x RTX3090, RTX3060" --weights 4.89 --context 8192 --to llama.cpp  # flags for llama.cpp
fit model.gguf "RTX4090, 64 GB DDR5-5600" --fine experts --to llama.cpp  # experts may stay in RAM
fit config.json "8x L4" --objective throughput --weights fp8 --to vllm  # stages for many requests
fit config.json box.json --split 30,10 --max-context -o plan.json  # the longest context; your own split
export plan.json --to vllm  # VLLM_PP_LAYER_PARTITION and its order of GPUs
advise gpus --overhead 0.10 --speedup 3  # GPUs for a speedup of 3 at 10 % overhead
advise servers --load '249 MB' --workers 8 --rate '10 Gbit/s' --compute '0.5 s'  # servers whose load it hides
advise minibatch inception_v3-train dgx1-v100-2gpu  # batches that fit, and ops to recompute
list graphs  # the graphs that solve and compare take by name
"""
"""Example command lines of ``dlplacer``, one per line, each with its effect as a comment."""

_GRAPH = "output written -o,--output:GRAPH graph file to write"
_PLAN = "output written -o,--output:PLAN plan file to write"
_MACHINE = ("output written -o,--output:F topology file to write", "json")
_SPLITTING = ("split", "times")
_SHOWN = (
    "trace written F Chrome trace (JSON), for ui.perfetto.dev",
    "html written F one page to explore the whole plan",
    "against read PLAN a second plan, shown beside the first on the page of --html",
    "csv written F the ops as CSV; the transfers go to F with -transfers in its name",
    "color_by word:phase,module - colours of --gantt (phase)",
)
_RUN = (
    "html written F one page to explore the predicted and the measured step",
    "one_process flag - feed all GPUs from one process instead of one process per GPU",
    "json",
)
_PIPELINE = (
    "time_limit_s seconds>=0 - time for an op placement to compare with (10 s; 0: none)",
    "plan_file written -o,--output:PLAN plan file to write, for dlplacer run",
    "html written F one page with the schedule and its stages",
    "csv written F the order as torch.distributed.pipelining reads it",
    *("json", "allow_other_loss"),
)
_EPOCHS = "output written -o,--output:EPOCHS epochs file to write"
_BUDGETS = ("html written F one page with every budget", "json")
_COMPARED = "html written F one page with the schedules of all methods"
_REPORT = "output written -o,--output:F write a report (JSON) that can be attached to an issue"
_TARGETS = "to text* TARGET runtime to print the plan for; see dlplacer list targets"
_BEST = "stopping with the best plan so far; press Ctrl-C again to give up"
_LAST = "stopping after the current solve; press Ctrl-C again to stop at once"


def _command(path: str, call: str = "", own: tuple[str, ...] = (), action: Any = None, **more: Any) -> Command:
    name, words = path.rpartition(" ")[2], dict(line.split(": ", 1) for line in _HELPS.strip().splitlines())
    examples = tuple(line for line in _EXAMPLES.strip().splitlines() if line.startswith(f"{path} "))
    return Command(name, words[path], call, own, action, examples=examples, **more)


def _shown(given: Given) -> int:
    topology = dp.load_topology(given.topology)
    actions.written(given, topology)
    return actions.shown(given, topology)


_TOPOLOGY = (
    _command("topology detect", "detect_topology", _MACHINE, doing="timing links"),
    _command("topology show", "", ("topology", "json"), _shown, subject="topology"),
    _command("topology new", "new_topology", _MACHINE),
    _command("topology import", "import_topology", _MACHINE),
)
_ADVISE = (
    _command("advise minibatch", "advise_minibatch", ("json",), doing="mini-batches"),
    _command("advise gpus", "advise_gpus", ("json",)),
    _command("advise servers", "advise_servers", ("json",)),
)
_PROFILED = (f"{_GRAPH}, with the measured times", "json", *_SPLITTING, "search_s")
COMMANDS = (
    _command("capture", "capture", (_GRAPH, "json"), doing="capturing"),
    _command("solve", "place", (_PLAN, "json", *_SPLITTING), actions.solve, doing="solving", says=_BEST),
    _command("check", "", ("plan", "json"), actions.check),
    _command("compare", "compare", (_COMPARED, "json"), doing="comparing", says=_BEST),
    _command("show", "", ("plan", *_SHOWN), actions.show, subject="plan"),
    _command("explain", "explain", ("json",), doing="solving again", says=actions.PARTIAL),
    _command("run", "run", _RUN, actions.run, subject="run"),
    _command("profile", "profile", _PROFILED, actions.profile, doing="profiling"),
    _command("selftest", "selftest", ("json", _REPORT), doing="trying the runtime"),
    _command("topology", below=_TOPOLOGY),
    _command("graph", below=(_command("graph import", "import_graph", (_GRAPH, "json")),)),
    _command("groups", "groups", ("json",)),
    _command("epochs", "epochs", (_EPOCHS, "json"), doing="trainings"),
    _command("hybrid", "hybrid", _BUDGETS, doing="hybrids", says=_LAST, subject="hybrid plan"),
    _command("pipeline", "pipeline", _PIPELINE, actions.pipeline, doing="pipelines tried", subject="pipeline plan"),
    _command("fit", "fit", (_TARGETS, _PLAN, "json"), actions.fit, subject="fit"),
    _command("export", "export"),
    _command("advise", below=_ADVISE),
    _command("list", "catalogue", ("json",)),
)
