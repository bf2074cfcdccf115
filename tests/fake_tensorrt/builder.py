"""The builder, what configures it, and timing caches."""

import json
import random

import numpy as np

from tests.fake_tensorrt import faults
from tests.fake_tensorrt.enums import (
    BuilderFlag,
    NetworkDefinitionCreationFlag,
    ProfilingVerbosity,
    Severity,
)
from tests.fake_tensorrt.logger import need_logger
from tests.fake_tensorrt.network import INetworkDefinition
from tests.fake_tensorrt.plan import Plan, pack_engine
from tests.fake_tensorrt.precision import compute_nodes
from tests.fake_tensorrt.rounding import SMALLEST_HALF
from tests.fake_tensorrt.versions import NUMBERS, VERSION, bound

_CACHE = b"faketiming\x01"
_WEIGHTS = {
    "Detected subnormal FP16 values.": (SMALLEST_HALF, 2.0**-14),
    "Detected values less than smallest positive FP16 subnormal value and converted them to the "
    "FP16 minimum subnormalized value.": (5e-324, SMALLEST_HALF),
    "Detected finite FP32 values which would overflow in FP16 and converted them to the closest "
    "finite FP16 value.": (65520, np.inf),
}
"""What the builder tells of weights of magnitudes from, to below."""


class IHostMemory(bytearray):
    @property
    def nbytes(self):
        return len(self)


@bound
class IOptimizationProfile:
    extra_memory_target = 1.0

    def __init__(self):
        self._limits = {}

    def set_shape(self, input, min, opt, max):
        shapes = tuple(tuple(int(n) for n in shape) for shape in (min, opt, max))
        for which, shape in zip(("min", "opt", "max"), shapes, strict=True):
            if len(shape) != len(shapes[0]):
                raise RuntimeError(
                    f"Shape provided for {which} is inconsistent with other dimensions."
                )
        self._limits[input] = shapes

    set_shape_input = set_shape

    def get_shape(self, input):
        return list(self._limits[input])

    def get_shape_input(self, input):
        return [list(values) for values in self._limits[input]]

    def __bool__(self):
        return all(
            low <= mid <= high
            for limits in self._limits.values()
            for low, mid, high in zip(*limits, strict=True)
        )


@bound
class ITimingCache:
    def __init__(self, keys, version=VERSION):
        self._keys, self._version = set(keys), version

    def serialize(self):
        text = json.dumps({"version": VERSION, "keys": sorted(self._keys)})
        return IHostMemory(_CACHE + text.encode())

    def combine(self, input_cache, ignore_mismatch):
        self._keys |= input_cache._keys
        return True

    def reset(self):
        self._keys.clear()
        return True


@bound
class IBuilderConfig:
    builder_optimization_level = 3
    hardware_compatibility_level = None
    max_aux_streams = 0
    algorithm_selector = None
    avg_timing_iterations = 1
    max_workspace_size = 0
    profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY

    def __init__(self, logger):
        self._logger = logger
        self._flags = {BuilderFlag.TF32}
        self._pools, self._profiles, self._cache = {}, [], None
        self._sources = 31

    @property
    def flags(self):
        return sum(1 << int(flag) for flag in self._flags)

    def set_flag(self, flag):
        self._flags.add(BuilderFlag(flag))

    def clear_flag(self, flag):
        self._flags.discard(BuilderFlag(flag))

    def get_flag(self, flag):
        return BuilderFlag(flag) in self._flags

    def set_memory_pool_limit(self, pool, pool_size):
        self._pools[pool] = int(pool_size)

    def get_memory_pool_limit(self, pool):
        return self._pools.get(pool, 0)

    def set_tactic_sources(self, tactic_sources):
        self._sources = int(tactic_sources)
        return True

    def get_tactic_sources(self):
        return self._sources

    def create_timing_cache(self, serialized_timing_cache):
        data = bytes(serialized_timing_cache)
        if not data:
            return ITimingCache(())
        try:
            content = json.loads(data.removeprefix(_CACHE))
        except ValueError:
            self._logger.log(Severity.ERROR, "1: Serialization: the timing cache is damaged")
            return None
        return ITimingCache(content["keys"], content["version"])

    def set_timing_cache(self, cache, ignore_mismatch):
        if cache._version != VERSION and not ignore_mismatch:
            self._logger.log(Severity.ERROR, "3: The timing cache is of another version")
            return False
        self._cache = cache
        return True

    def get_timing_cache(self):
        return self._cache

    def add_optimization_profile(self, profile):
        if not profile:
            self._logger.log(Severity.ERROR, "3: The optimization profile is not valid")
            return -1
        self._profiles.append(profile._limits)
        return len(self._profiles) - 1

    @property
    def num_optimization_profiles(self):
        return len(self._profiles)


@bound
class Builder:
    platform_has_fast_fp16 = True
    platform_has_fast_int8 = True
    platform_has_tf32 = True
    max_threads = 1
    error_recorder = None

    def __init__(self, logger):
        self._logger = need_logger(logger)
        self._log(
            Severity.INFO, "[MemUsageChange] Init CUDA: CPU +14, GPU +0, now: CPU 53, GPU 428 (MiB)"
        )

    @property
    def logger(self):
        return self._logger

    def create_network(self, flags=0):
        batch = NetworkDefinitionCreationFlag.__members__.get("EXPLICIT_BATCH")
        if NUMBERS < (10,) and not flags >> int(batch) & 1:
            raise NotImplementedError("the fake has no implicit batch dimension")
        return INetworkDefinition(self._logger, flags)

    def create_builder_config(self):
        return IBuilderConfig(self._logger)

    def create_optimization_profile(self):
        return IOptimizationProfile()

    def build_engine(self, network, config):
        raise NotImplementedError("the fake builds serialized networks only")

    def build_serialized_network(self, network, config):
        try:
            return IHostMemory(self._build(network, config))
        except faults.Failure as failure:
            self._log(Severity.ERROR, str(failure))
            self._log(
                Severity.ERROR,
                "2: [builder.cpp::buildSerializedNetwork::751] Error Code 2: Internal Error "
                "(Assertion engine != nullptr failed. )",
            )
            return None

    def _log(self, severity, text):
        self._logger.log(severity, text)

    def _build(self, network, config):
        plan = self._plan(network, config)
        about = {"low": plan.low, "tf32": plan.tf32, "typing": plan.typing}
        about["kept"] = network._kept() if self._obeys(config) else []
        about["int8"] = network._is_quantised()
        about |= {"graph": network._graph, "outputs": plan.outputs, "level": plan.level}
        for block in faults.knob("FUSED", []):
            name = f"{{ForeignNode[{block[0]}...{block[-1]}]}}"
            self._log(Severity.VERBOSE, f"=============== Computing costs for {name}")
        faults.strike("build", about)
        if config._cache is not None:
            config._cache._keys.update(f"{layer.name}:{plan.low}" for layer in network)
        engine = pack_engine(plan, network._proto)
        faults.strike("save", about)
        self._log(Severity.INFO, f"[MemUsageStats] Engine of {len(engine)} bytes")
        return engine

    def _obeys(self, config):
        flags = {flag.name for flag in config._flags}
        return bool(flags & {"OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS"})

    def _plan(self, network, config):
        if network._graph is None:
            raise faults.Failure("4: [network.cpp::validate] Network must have at least one output")
        flags = {flag.name for flag in config._flags}
        low = next((name.lower() for name in ("FP16", "BF16") if name in flags), None)
        if network._strong and low is not None:
            raise faults.Failure(
                "3: [builder.cpp] Error Code 3: API Usage Error (Parameter check failed, "
                f"condition: !config.getFlag(BuilderFlag::k{low.upper()}))"
            )
        if not network._strong and not flags & {"INT8", "FP8"} and network._is_quantised():
            raise faults.Failure(
                "4: [network.cpp::validate::2925] Error Code 4: Internal Error (Int8 precision has "
                "been set for a layer or layer output, but int8 is not configured in the builder)"
            )
        for fault in (layer._fault() for layer in network if not network._strong):
            if fault is not None:
                raise faults.Failure(fault)
        self._check_profiles(network, config)
        if low == "fp16":
            self._tell_of_weights(network)
        number = faults.count("plans")
        return Plan(
            number=number,
            version=VERSION,
            typing="strong" if network._strong else "weak",
            low=low,
            tf32="TF32" in flags,
            fp32=self._fp32(network, config, low, number),
            outputs=network._outputs,
            profiles=config._profiles,
            detailed=config.profiling_verbosity is ProfilingVerbosity.DETAILED,
            level=config.builder_optimization_level,
        )

    def _tell_of_weights(self, network):
        """Log what TensorRT does of weights that FP16 cannot hold."""
        constants = network._graph.initializers.values()
        magnitudes = [np.abs(v.const_value.numpy()) for v in constants if int(v.dtype) == 1]
        affected = {
            kind: sum(bool(np.any((m >= low) & (m < high))) for m in magnitudes)
            for kind, (low, high) in _WEIGHTS.items()
        }
        if any(affected.values()):
            self._log(
                Severity.WARNING,
                "TensorRT encountered issues when converting weights between types and that could "
                "affect accuracy.",
            )
        for kind, count in affected.items():
            if count:
                text = f" - {count} weights are affected by this issue: {kind}"
                self._log(Severity.WARNING, text)

    def _fp32(self, network, config, low, number):
        """Return the nodes that the engine computes in FP32 although it could be in `low`."""
        kept = set(network._kept()) if self._obeys(config) else set()
        kept -= set(faults.knob("IGNORED", []))
        kept |= {node for block in faults.knob("FUSED", []) for node in block}
        chance, _, seed = faults.knob_text("VARY", "0:0").partition(":")
        if float(chance) and low is not None:
            draw = random.Random(int(seed or 0) * 1000003 + number)  # noqa: S311 - no secret
            kept |= {n for n in compute_nodes(network._graph) if draw.random() < float(chance)}
        return sorted(kept)

    def _check_profiles(self, network, config):
        inputs = [network.get_input(i) for i in range(network.num_inputs)]
        dynamic = [t for t in inputs if -1 in t.shape or t.is_shape_tensor]
        if dynamic and not config._profiles:
            raise faults.Failure(
                "4: [network.cpp::validate::3036] Error Code 4: Internal Error (Network has "
                "dynamic or shape inputs, but no optimization profile has been defined.)"
            )
        for number, profile in enumerate(config._profiles):
            for tensor in dynamic:
                if tensor.name not in profile:
                    raise faults.Failure(
                        "4: [network.cpp::validate::3040] Error Code 4: Internal Error "
                        f"({tensor.name}: optimization profile {number} is missing it)"
                    )
                for shape in () if tensor.is_shape_tensor else profile[tensor.name]:
                    fits = len(shape) == len(tensor.shape) and all(
                        d in (-1, n) for d, n in zip(tensor.shape, shape, strict=True)
                    )
                    if not fits:
                        raise faults.Failure(
                            "4: [network.cpp::validate::3100] Error Code 4: Internal Error "
                            f"({tensor.name}: profile {shape} does not fit {tensor.shape})"
                        )
