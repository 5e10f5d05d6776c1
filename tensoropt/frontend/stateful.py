"""Say what TensorOpt does with each operator that keeps a state, has an effect or takes a resource.

One table holds them all, so that nothing a step does is left out without a word. An operator that isn't in it is refused.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Collection

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from ..common.errors import InputError

TABLE_TYPES = ("LookupTableFindV2",)
"""Lookups in tables, which run on a batch before the step."""


class Treatment(enum.Enum):
    """The ways in which TensorOpt treats an operator."""

    READ = "it reads a variable, and is recorded"
    WRITE = "it writes variables, and is recorded"
    CALL = "it calls functions, whose operators are treated by themselves"
    TABLE = "it looks up in a table, before the step"
    RANDOM = "it draws random numbers, and is recorded"
    EFFECT = "it has an effect on the world"
    HARMLESS = "it has no effect, and is recorded or left out"
    REFUSED = "it is refused"


_SCATTER = "Add Sub Mul Div Min Max Update"
_KNOWN = {
    Treatment.READ: "VarHandleOp ReadVariableOp ResourceGather ResourceGatherNd VariableShape",
    Treatment.WRITE: "AssignVariableOp AssignAddVariableOp AssignSubVariableOp ResourceApplyGradientDescent "
    "ResourceStridedSliceAssign "
    + " ".join(f"ResourceScatter{kind}" for kind in _SCATTER.split())
    + " "
    + " ".join(f"ResourceScatterNd{kind}" for kind in "Add Sub Min Max Update".split()),
    Treatment.CALL: "StatefulPartitionedCall If Case While",
    Treatment.TABLE: " ".join(TABLE_TYPES),
    Treatment.RANDOM: "AllCandidateSampler CudnnRNN CudnnRNNV2 CudnnRNNV3 CudnnRNNBackprop CudnnRNNBackpropV2 "
    "CudnnRNNBackpropV3 FixedUnigramCandidateSampler LearnedUnigramCandidateSampler LogUniformCandidateSampler Multinomial "
    "ParameterizedTruncatedNormal RandomCrop RandomGamma RandomPoisson RandomPoissonV2 RandomShuffle RandomStandardNormal "
    "RandomUniform RandomUniformInt SampleDistortedBoundingBox SampleDistortedBoundingBoxV2 "
    "ThreadUnsafeUnigramCandidateSampler TruncatedNormal UniformCandidateSampler",
    Treatment.EFFECT: "Assert CheckNumerics CheckNumericsV2 CloseSummaryWriter CreateSummaryDbWriter "
    "CreateSummaryFileWriter EagerPyFunc FlushSummaryWriter ImportEvent PrintV2 PyFunc SummaryWriter "
    "WriteAudioSummary WriteFile WriteGraphSummary WriteHistogramSummary WriteImageSummary WriteRawProtoSummary "
    "WriteScalarSummary WriteSummary",
    Treatment.HARMLESS: "DeepCopy DeviceIndex DisableCopyOnRead Empty GraphDefVersion GuaranteeConst "
    "IsResourceHandleRefCounting IsTensorFloat32Enabled StatelessRandomGetAlg VarIsInitializedOp",
}
_OF_TYPE = {name: treatment for treatment, names in _KNOWN.items() for name in names.split()}
_REFUSED = {  # why, to what to do: the names of the operators
    "it updates variables as TensorFlow 1's optimizers do; apply an optimizer of Keras, or assign the updated value": (
        r"Resource(Sparse)?Apply\w+|ResourceCountUpTo|XlaSparseCore\w+"
    ),
    "it draws from a generator that keeps its state in a variable; draw by tf.random.stateless_uniform and its kin, or by "
    "keras.random": r"Rng\w+|Stateful(Random|Standard|Truncated|Uniform)\w*|NonDeterministicInts",
    "it uses a table that changes, or that isn't only looked up in; do that before the model, as by dataset.map": (
        r"\w*(HashTable|LookupTable|InitializeTable)\w*"
    ),
    "it reads from a dataset; iterate outside of the step, and give it what the dataset gives": (
        r"(?!TPU)\w*(Dataset|Iterator|SeedGenerator|MemoryCache|StatsAggregator|ThreadPool)\w*|DummyIterationCounter|"
        r"RecordInput|GlobalIterId"
    ),
    "it keeps what it is given for later; keep that in a variable": (
        r"\w*Queue\w*|Stack(V2|PushV2|PopV2|CloseV2)|(Ordered)?Map(Clear|IncompleteSize|Peek|Size|Stage|Unstage|UnstageNoKey)|"
        r"(Stage|Unstage)\w*|\w*(ConditionalAccumulator|TensorsMap|SessionHandle\w*|SessionTensor)|ResourceAccumulator\w+|"
        r"TensorArray\w*V[23]|TensorArrayGradWithShape|Mutex\w+|ConsumeMutexLock"
    ),
    "it reads or writes files of its own; read before the step, and save after it, as by trainer.save": (
        r"\w*Reader\w*V2|(DTensor|Distributed)?(Save|Restore)(V2|Slices?)?|MergeV2Checkpoints|LoadAndRemapMatrix|"
        r"FileSystemSetConfiguration|DumpTensor|DebugIdentityV[23]|CalibrationStatisticsSaver"
    ),
    "it places work on devices by itself, or passes values between them; leave that to TensorOpt": (
        r"\w*(TPU|Nccl|ScopedAllocator|Collective|MinibatchSplits|MinibatchesIn|MinibatchStatistics|DedupData)\w*|_?Xla\w+|"
        r"ReadVariableXla\w+|AssignVariableXla\w+|_?(Host)?(Send|Recv)|(Infeed|Outfeed)\w+|Rpc\w+|RemoteCall|AllToAll|"
        r"CrossReplicaSum|ConvertToCooTensor|SyncDevice|WorkerHeartbeat|UpdateTaskIdAndGlobalCoreArray|DevicePlacementOp|"
        r"RiscWhile|_(Arg|Retval|DeviceArg|DeviceRetval|If|While|ParallelConcatStart|ReadVariablesOp|VarHandlesOp)"
    ),
    "it gives something else each time, on each rank; give its value to the step as an argument": (
        r"Timestamp|Sleep(Identity)?Op"
    ),
    "it prints, and passes on what it is given; use tf.print": r"Print",
    "it is of a kind of model that TensorFlow no longer trains": r"BoostedTrees\w+|IsBoostedTrees\w+|Skipgram",
    "it makes, passes on or ends a resource; make variables outside of the step": (
        r"DestroyResourceOp|MakeWeakResourceHandle|Resource(CreateOp|InitializedOp|UsingOp)|StubResourceHandleOp|"
        r"Delete(RandomSeedGenerator|RpcFutureResource)|DtypeWithDefaultOp|RequiresOlderGraphVersion|TestAttr"
    ),
}
_UNKNOWN = "it keeps a state or has an effect that TensorOpt doesn't know; do that outside of the step"
_OLD_VARIABLE = "it makes or uses a variable, table or queue of the old kind; leave use_resource at True"


@functools.cache
def treatment_of(op_type: str) -> Treatment | None:
    """Return what is done with operators of a type; None if they only compute their results from tensors."""
    if op_type in _OF_TYPE:
        return _OF_TYPE[op_type]
    return Treatment.REFUSED if is_stateful(op_type) else None


@functools.cache
def why_refused(op_type: str) -> str:
    """Return why operators of a type are refused, and what to do; empty if nothing is known of them."""
    if _uses_references(op_type):
        return _OLD_VARIABLE
    return next((why for why, pattern in _REFUSED.items() if re.fullmatch(pattern, op_type)), "")


def check_is_known(op: tf.Operation, line: str) -> None:
    """Check that it is known what an operator does besides computing its results; raise InputError if it is refused."""
    if treatment_of(op.type) is Treatment.REFUSED:
        why = why_refused(op.type) or _UNKNOWN
        raise InputError(f"{op.type} '{op.name}' ({line}) can't be recorded: {why}")


def check_is_plain(op: tf.Operation, line: str) -> None:
    """Check that an operator is TensorFlow's own, with its gradient and no effect; raise InputError if not."""
    check_is_known(op, line)
    if not op.outputs and treatment_of(op.type) is Treatment.EFFECT:
        raise left_out(f"{op.type} '{op.name}' ({line})", "a recorded graph")
    if any(attr.type in ("func", "list(func)") for attr in op.op_def.attr):
        raise InputError(
            f"{op.type} '{op.name}' ({line}) calls a function, which can't be recorded; expected plain "
            "operators: choose between values with tensoropt.where, or decide in Python"
        )
    if "_gradient_op_type" in op.node_def.attr:
        raise InputError(
            f"{op.type} '{op.name}' ({line}) has another gradient by gradient_override_map, which can't be "
            "recorded; write it with tf.custom_gradient"
        )
    if op.type == "EagerPyFunc":
        raise InputError(
            f"{op.type} '{op.name}' ({line}) can't be recorded: it calls Python with gradients; use TensorFlow's operators, "
            "or numpy_function where none are needed"
        )


def has_only_an_effect(op: tf.Operation, returned: Collection[str]) -> bool:
    """Return whether an operator has an effect on the world, and nothing computes with its results.

    Args:
        returned: the names of the tensors that the function with the operator returns.
    """
    if treatment_of(op.type) is not Treatment.EFFECT:
        return False
    return not any(tensor.consumers() or tensor.name in returned for tensor in op.outputs)


def left_out(where: str, place: str) -> InputError:
    """Return the error that says that an effect on the world can't run as often as on one device.

    Args:
        where: the operator and its line.
    """
    return InputError(
        f"{where} can't be recorded: it has an effect on the world in {place}, which would be left out; do it after that, "
        "with the values that it needs, or outside of the step, as in a callback"
    )


@functools.cache
def is_stateful(op_type: str) -> bool:
    """Return whether operators of a type keep a state, have an effect or take a resource."""
    definition = op_def_registry.get(op_type)
    if definition is None:  # a call by a function's name
        return False
    takes_resource = any(argument.type == tf.resource.as_datatype_enum for argument in definition.input_arg)
    return definition.is_stateful or takes_resource or _uses_references(op_type)


def _uses_references(op_type: str) -> bool:
    definition = op_def_registry.get(op_type)
    return definition is not None and any(argument.is_ref for argument in (*definition.input_arg, *definition.output_arg))
