"""The sub-commands: names, parameters and actions."""

import dlplacer as dp
from dlplacer.api import parameters as the
from dlplacer.api.kinds import FLAG, READ, Parameter
from dlplacer.cli import actions
from dlplacer.cli.parser import Command, Given, completed, parser_of

_DEVICES = Parameter("devices", "cpu:0,cpu:1 or cuda:0,cuda:1: in the plan's order", metavar="D[,D…]")
_SHELL = Parameter("shell", "the shell to complete in", option="shell", choices=("bash", "zsh", "tcsh"))
_STEP = ("job options (for MODEL as module:callable)", the.STEP)
_PLANNED = (the.SUBJECT, the.CALIBRATION)


def _detect(given: Given) -> int:
    return actions.topology(given, actions.called(dp.detect_topology, given, "timing links"))


def _groups(given: Given) -> int:
    return actions.shown(given, dp.groups(**given.arguments))


def _minibatch(given: Given) -> int:
    return actions.shown(given, actions.called(dp.advise_minibatch, given, "mini-batches"))


def _gpus(given: Given) -> int:
    return actions.figures(given, dp.advise_gpus(**given.arguments))


def _servers(given: Given) -> int:
    return actions.figures(given, dp.advise_servers(**given.arguments))


def _shown(given: Given) -> int:
    return actions.topology(given, dp.load_topology(given.topology))


def _imported(given: Given) -> int:
    return actions.topology(given, dp.import_topology(**given.arguments))


def _described(given: Given) -> int:
    return actions.topology(given, dp.new_topology(**given.arguments))


def _imported_graph(given: Given) -> int:
    return actions.graph(given, dp.import_graph(**given.arguments))


def _completion(given: Given) -> int:
    print(completed(parser_of(COMMANDS), given.shell))
    return 0


_ADVISE = (
    Command(
        "minibatch",
        "mini-batch of least training time in a device's memory",
        _minibatch,
        (the.SUBJECT, the.MINIBATCH, the.JSON, *_STEP),
    ),
    Command("gpus", "GPUs for a speedup, or the overhead that an efficiency allows", _gpus, (the.GPUS, the.JSON)),
    Command(
        "servers",
        "servers or loaders that hide a load behind computation",
        _servers,
        (the.SERVERS, the.JSON),
        ("load_bytes", "bytes_per_s", "compute_s"),
    ),
)
_TOPOLOGY = (
    Command(
        "detect",
        "GPUs (NVML) or, without any, the CPU cores of this host",
        _detect,
        (the.KIND, the.MEASURE, the.output("T", "topology file to write"), the.TOPOLOGY_JSON),
    ),
    Command("show", "a table, and a picture", _shown, (the.SHIPPED, the.pictures("topology"), the.TOPOLOGY_JSON)),
    Command(
        "new",
        "from words, as 2x RTX3090, RTX3060, 64 GB DDR5-5600",
        _described,
        (the.DESCRIPTION, the.DESCRIBED, the.output("T", "topology file to write"), the.TOPOLOGY_JSON),
    ),
    Command(
        "import",
        "nvidia-smi topo -m text, NCCL or RCCL topology XML, networkx node-link JSON, or dnn-partitioning workload",
        _imported,
        (
            Parameter("path", "the file that the other tool wrote", READ, "FILE", "path"),
            the.DEVICE_TYPE,
            the.output("T", "topology file to write"),
            the.TOPOLOGY_JSON,
        ),
    ),
)

COMMANDS = (
    Command(
        "capture",
        "Capture a model's step as a graph, without allocating anything.",
        actions.capture,
        (the.CODE, the.output("GRAPH", "graph file to write"), the.ROOFLINE, the.JSON, *_STEP),
        examples="""
        capture dlplacer.models:inception_v3 -o graph.json  # forward and backward, batch 32
        capture my_model:build --batch-size 8 --optimizer adam -o graph.json  # my_model.py returns a dlplacer.Job
        capture my_model:Net --input float32:8x3x224x224 -o graph.json  # a bare module: its inference
        capture model.onnx --dim batch=8 -o graph.json  # an ONNX file
        """,
    ),
    Command(
        "solve",
        "Find the plan of least step time, with a lower bound and a gap.",
        actions.solve,
        (
            *_PLANNED,
            *(the.ASSUMED, the.SOLVED, the.WORK, the.WITHOUT, the.EXPORT, the.ISSUE, the.HELD, the.WARM_START),
            *(the.output("PLAN", "plan file to write"), the.JSON, *_STEP),
            *("splitting (for MODEL as module:callable)", the.SPLIT),
        ),
        examples="""
        solve inception_v3-train dgx1-v100-2gpu -o plan.json  # a graph and a machine that ship; see dlplacer list
        solve my_model:build my_box.json --batch-size 8 --time-limit 5min -o plan.json  # a model and a box of yours
        solve model.onnx pcie-4gpu --dim batch=8  # an ONNX file
        solve graph.json pcie-4gpu --pin embedding=gpu0 --colocate 'decoder.*' -o plan.json  # hold ops in place
        solve graph.json pcie-4gpu --warm-start plan.json -o better.json  # go on from a plan
        """,
    ),
    Command(
        "check",
        "Check a plan against every rule of the problem.",
        actions.check,
        (the.PLAN, the.JSON),
        examples="""
        check plan.json  # exit code 5 if it breaks a rule
        """,
    ),
    Command(
        "compare",
        "Compare all methods on one problem: step time, speedup, gap to the best lower bound, time.",
        actions.compare,
        (
            *_PLANNED,
            *(the.ASSUMED, the.COMPARED, the.ISSUE, the.HELD, the.pictures("comparison")),
            *(the.page("one page with the schedules of all methods"), the.JSON, *_STEP),
        ),
        examples="""
        compare inception_v3-train dgx1-v100-2gpu --time-limit 20s  # every method
        compare graph.json pcie-4gpu --methods ilp,heft,m-sct --picture methods.png  # some of them, with a picture
        """,
    ),
    Command(
        "show",
        "Show a plan: as a table, as pictures, as a Chrome trace, as a page.",
        actions.show,
        (the.PLAN, the.SHOWN),
        examples="""
        show plan.json  # a table of devices
        show plan.json --gantt gantt.png --memory memory.png  # pictures; also .svg and .pdf
        show plan.json --html plan.html --trace trace.json  # a page, and a trace for ui.perfetto.dev
        show plan.json --csv ops.csv  # ops.csv and ops-transfers.csv
        """,
    ),
    Command(
        "explain",
        "Say why a plan takes as long as it does, and what would help: changes ranked by gain and bound.",
        actions.explain,
        (the.PLAN, the.DISPATCH, the.BUDGET, the.WHY, the.HELD, the.WORKERS, the.JSON),
        examples="""
        explain plan.json  # critical path, bounds, idle devices; then ten seconds of solving with one change
        explain plan.json --budget 1min  # the same, with a minute of solving
        explain plan.json --budget 0  # the figures alone, at once
        explain plan.json --why fc --budget 20s  # the step with an op elsewhere
        explain plan.json --pin 'encoder.*=gpu0'  # what moves, and what it costs, when a module is pinned
        """,
        description="Gain: (step of the plan - step found with the change) / step of the plan; a step counts as found "
        "when a plan with it has passed every check. At most: the same with a lower bound in place of the step, so no "
        "plan with the change gains more; what better search could gain without any change is part of it. Changes "
        "are: the busiest links twice as fast, and all of them; one more device of each type; 25 %% more memory; each "
        "of the ten longest ops twice as fast; other granularities.",
    ),
    Command(
        "run",
        "Run a plan on devices of this machine, and compare prediction and measurement.",
        actions.run,
        (
            *(the.PLAN, the.OWN_CODE, _DEVICES, the.RUN, the.MEASURED_PICTURE, the.TRACE),
            the.page("one page: the predicted and the measured step to walk through"),
            Parameter("one_process", "feed several GPUs from one process, and not each from one of its own", FLAG),
            *(the.JSON, *_STEP),
        ),
        ("devices",),
        examples="""
        run plan.json --devices cpu:0,cpu:1 --gantt run.png  # a plan of one of dlplacer's own models, on two cores
        run plan.json my_model:build --devices cuda:0,cuda:1  # of a model of yours, a process for each of two GPUs
        run plan.json --devices rank0/cpu:0,rank1/cpu:1 --timeout 5min  # in two processes
        """,
    ),
    Command(
        "profile",
        "Time every op of a model on devices of this machine.",
        actions.profile,
        (
            *(the.CODE, the.TIMED_DEVICES, the.PROFILED),
            *(the.output("GRAPH", "graph file to write, with the measured times"), the.JSON, *_STEP),
            *("splitting (for MODEL as module:callable)", the.SPLIT),
        ),
        ("devices",),
        examples="""
        profile dlplacer.models:inception_v3 --device cpu:0,cpu:1 --batch-size 8 -o graph.json  # two busy cores
        profile my_model:build --device cuda:0 --calibration v100.json  # keep the times for other models
        """,
    ),
    Command(
        "selftest",
        "Try the runtime on devices of this machine: numbers, races, links, issue costs, steps of Inception-V3.",
        actions.selftest,
        (
            *(_DEVICES, the.SELFTEST, the.JSON),
            the.output("F", "write a report (JSON) that can be attached to an issue"),
        ),
        ("devices",),
        examples="""
        selftest --devices cpu:0,cpu:1 --no-steps  # numbers, races and links: less than a minute
        selftest --devices cuda:0,cuda:1 -o report.json  # everything, on two GPUs, with a report for an issue
        """,
    ),
    Command(
        "topology",
        "Detect this machine, show a topology, describe one in words, or import one from another tool.",
        examples="""
        topology new "2x RTX3090, RTX3060, 64 GB DDR5-5600" --link pcie4 -o box.json  # a machine in words
        topology detect --measure -o box.json  # this machine, with timed links
        topology show dgx1-v100-8gpu --picture dgx1.png  # a table and a picture
        topology import topo.txt --type V100 -o box.json  # the output of nvidia-smi topo -m
        """,
        below=_TOPOLOGY,
    ),
    Command(
        "graph",
        "Import a graph from another tool.",
        examples="""
        graph import bert24_inference.json -o graph.json  # a workload of msr-fiddle/dnn-partitioning
        """,
        below=(
            Command(
                "import",
                "a workload of msr-fiddle/dnn-partitioning",
                _imported_graph,
                (
                    Parameter("path", "the file that the other tool wrote", READ, "FILE", "path"),
                    *(the.output("GRAPH", "graph file to write"), the.JSON),
                ),
            ),
        ),
    ),
    Command(
        "groups",
        "Group layers whose parameters (forward) or gradients (backward) travel together between a machine's devices.",
        _groups,
        (the.SUBJECT, the.GROUPS, the.JSON, *_STEP),
        examples="""
        groups inception_v3-train pcie-4gpu --direction backward  # buckets of gradients
        groups inception_v3-train pcie-4gpu --direction backward --cap '25 MiB'  # none larger than 25 MiB
        """,
    ),
    Command(
        "epochs",
        "Measure how many epochs every batch needs, workers emulated on one device: the file for `dlplacer hybrid`.",
        actions.epochs,
        (
            the.TRAINING,
            the.EPOCHS,
            the.output("EPOCHS", "epochs file to write"),
            Parameter("json", "print the content of the epochs file", FLAG),
        ),
        ("batches",),
        examples="""
        epochs my_training:train --batches 1,2,4,8 --at-most 0.1 -o epochs.json  # until the loss is at most 0.1
        epochs my_training:train --batches 1,4 --at-least 0.9 --codecs none,ternary --jobs 2  # in parallel
        """,
    ),
    Command(
        "hybrid",
        "Data parallelism, model parallelism or both on N devices: step time x steps x epochs of every strategy.",
        actions.hybrid,
        (
            *(the.SUBJECT, the.ASSUMED, the.HYBRID, the.EPOCHS_FILE, the.HELD),
            *(the.pictures("hybrid plan"), the.page("one page with every budget"), the.JSON),
            *("step times of data parallelism (default: over the links of the topology)", the.SCALING, *_STEP),
        ),
        ("devices",),
        examples="""
        hybrid inception_v3-train dgx1-v100-8gpu --devices 64 --epochs epochs.json --network 12.5GB/s  # boxes of eight
        hybrid inception_v3-train dgx1-v100-2gpu --devices 256 --scaling-efficiency 1 --speedup 2=1.32  # as the paper
        """,
    ),
    Command(
        "pipeline",
        "Cut a model into stages for pipeline parallelism: stages, schedule, bubble, speedup.",
        actions.pipeline,
        (
            *_PLANNED,
            *(the.STAGES, the.OTHER_LOSS, the.HELD, the.pictures("pipeline plan"), the.JSON),
            the.time_limit("op placement, to compare with", "10 s; 0: none", 0),
            the.written("plan_file", "plan file to write, for dlplacer run", "PLAN", ("-o", "--output")),
            the.page("one page with the schedule and its stages"),
            the.written("csv", "the order as torch.distributed.pipelining reads it"),
            *_STEP,
        ),
        examples="""
        pipeline dlplacer.models:gnmt dgx1-v100-4gpu  # the best stages, micro-batches and schedule
        pipeline inception_v3-train dgx1-v100-2gpu --stages 2 --micro-batches 8 --schedule 1f1b  # one of them
        pipeline my_model:build pcie-4gpu -o plan.json  # a plan for dlplacer run
        """,
    ),
    Command(
        "fit",
        "Say where the layers of a language model go on unequal devices: tokens per second, a proof, flags to paste.",
        actions.fit,
        (
            *(the.DECODER, the.MACHINE, the.SERVED, the.FITTED),
            Parameter("to", the.TARGET.help, metavar="TARGET", repeat=True),
            *(the.pictures("fit"), the.output("PLAN", "plan file to write"), the.JSON),
            *("machine in words", the.DESCRIBED),
        ),
        examples="""
        fit config.json "2x RTX3090, RTX3060" --weights 4.89 --context 8192 --to llama.cpp  # flags for llama.cpp
        fit model.gguf "RTX4090, 64 GB DDR5-5600" --fine experts --to llama.cpp  # experts may stay in RAM
        fit config.json "8x L4" --objective throughput --weights fp8 --to vllm  # stages for many requests
        fit config.json box.json --split 30,10 --max-context -o plan.json  # the longest context; a split of yours
        """,
    ),
    Command(
        "export",
        "Print a plan of `dlplacer fit` as flags, variables or tables of another runtime.",
        actions.export,
        (the.PLAN, the.TARGET),
        ("to",),
        examples="""
        export plan.json --to vllm  # VLLM_PP_LAYER_PARTITION and its order of GPUs
        """,
    ),
    Command(
        "advise",
        "Advise on mini-batch and recomputation, GPUs for a speedup, or servers that hide behind computation.",
        examples="""
        advise gpus --overhead 0.10 --speedup 3  # GPUs for a speedup of 3 at 10 % overhead
        advise servers --load '249 MB' --workers 8 --rate '10 Gbit/s' --compute '0.5 s'  # servers that hide behind it
        advise minibatch inception_v3-train dgx1-v100-2gpu  # what fits, and what to recompute
        """,
        below=_ADVISE,
    ),
    Command(
        "list",
        "List what ships and can be named: graphs, topologies, models, methods, devices, targets.",
        actions.listed,
        (Parameter("what", "what to list", option="what", choices=the.LISTS), the.JSON),
        examples="""
        list graphs  # the graphs that solve and compare take by name
        list devices  # what --devices may name on this machine, and the types with known rates
        """,
    ),
    Command(
        "completion",
        "Print a script that completes commands, options, files and shipped names in a shell.",
        _completion,
        (_SHELL,),
        examples="""
        completion bash > ~/.local/share/bash-completion/completions/dlplacer  # for bash, from the next shell on
        completion zsh > ~/.zsh/completions/_dlplacer  # for zsh, with that folder in fpath
        completion tcsh >> ~/.cshrc  # for tcsh
        """,
    ),
)
