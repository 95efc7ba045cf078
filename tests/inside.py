"""The inside names of sbm that tests use: if one moves, this file changes and no test does."""

from importlib import import_module

import pytest

from sbm.__main__ import main as module_main
from sbm.alphas import Alphas, Dense, Lists, blend, join, no_alphas
from sbm.cli import cli, main
from sbm.cli import processes as cli_processes_module
from sbm.cli import show as cli_show_module
from sbm.cli.command import Terminal
from sbm.cli.commands import train as train_command
from sbm.cli.liblinear import OPTIONS, read_options
from sbm.cli.options import GROUPS
from sbm.compiled import cache as cache_module
from sbm.compiled import calls as calls_module
from sbm.compiled import child as child_module
from sbm.compiled import clock as engine_clock_module
from sbm.compiled import declared as declared_module
from sbm.compiled import linker as linker_module
from sbm.compiled import processor as processor_module
from sbm.compiled.calls import load
from sbm.compiled.clock import clock, compile_seconds, stopped_clock
from sbm.compiled.declared import specializations
from sbm.dataset import coding as dataset_coding_module
from sbm.dataset import deal as dataset_deal_module
from sbm.dataset import destination as dataset_destination_module
from sbm.dataset.deal import Dealer, Labels
from sbm.dataset.fill import Filling, default_model, default_store
from sbm.dataset.newlabels import NewLabels
from sbm.dataset.options import SplitOptions
from sbm.dataset.weights import RowWeights
from sbm.distributed import comm as distributed_comm_module
from sbm.distributed.comm import (
    _SIZES,
    EXIT_TIMEOUT,
    Comm,
    MpiComm,
    SerialComm,
    launched_size,
    world,
)
from sbm.distributed.launch import launch_line
from sbm.engine import byclass as engine_byclass_module
from sbm.engine import columns as engine_columns_module
from sbm.engine import kernels as engine_kernels_module
from sbm.engine import machine as engine_machine_module
from sbm.engine import memory as engine_memory_module
from sbm.engine import pace as engine_pace_module
from sbm.engine import prefetch as engine_prefetch_module
from sbm.engine import sync as engine_sync_module
from sbm.engine.certificate import certify_each, visit_all
from sbm.engine.engine import FULL_PASS, Engine
from sbm.engine.learners import Folds, Group, HeldOut
from sbm.engine.machine import (
    INTERPRETER,
    Limit,
    interpreter_bytes,
    smaller,
    system_limit,
    within_limit,
)
from sbm.engine.memory import (
    MemoryPlan,
    Part,
    Shape,
    plan_training,
    row_bytes,
    row_place_bytes,
)
from sbm.engine.pace import (
    LEAST_BYTES,
    PassCost,
    Work,
    choose_blocks,
    choose_cache_rows,
    choose_rounds,
    foresee_passes,
    hurried_rounds,
    is_falling,
    passes_left,
)
from sbm.engine.problems import make_problems
from sbm.engine.progress import NotebookProgress, Progress
from sbm.engine.sync import Combiner
from sbm.inputs import remote as inputs_remote_module
from sbm.inputs.columns.kinds import Asked, Column, Dialect
from sbm.inputs.columns.state import Columns
from sbm.inputs.columns.words import WordTable
from sbm.inputs.formats import FORMATS as INPUT_FORMATS
from sbm.inputs.formats import convert_inputs, format_of, open_inputs
from sbm.inputs.idtable import DIRECT_LIMIT, IdTable
from sbm.inputs.libsvm import REASONS as LIBSVM_REASONS
from sbm.inputs.libsvm import parse_text
from sbm.inputs.lines import number_lines
from sbm.inputs.live import TAIL, LiveFile, Patience, SourceProgress, is_pipe
from sbm.inputs.matrices import Batch, read_rows
from sbm.inputs.nametable import NameTable
from sbm.inputs.options import InputOptions, Naming
from sbm.inputs.packed import MOST, USUAL, Unpacked, errors, window_of
from sbm.inputs.parsing import ROUNDED_LABEL, ParsedText, Room
from sbm.inputs.parsing import SPARE as PARSING_SPARE
from sbm.inputs.text import Source, convert_sources, expand_inputs
from sbm.inputs.vw import REASONS as VW_REASONS
from sbm.inputs.vw import hash_names, parse_vw
from sbm.keywords import in_python
from sbm.losses import LOSSES
from sbm.methods import METHODS, method_named
from sbm.models import model as models_model_module
from sbm.models import probabilities as models_probabilities_module
from sbm.models.liblinear import read_model, write_model
from sbm.models.metrics import BinaryMetrics, MultiMetrics, ProbabilityMetrics, RegressionMetrics
from sbm.models.model import Model
from sbm.models.probabilities import calibrate, fit_platt, fit_softmax, probabilities
from sbm.models.weights import SparseWeights
from sbm.names import Names
from sbm.programs import expire as programs_expire_module
from sbm.programs import plan as programs_plan_module
from sbm.programs import precompile as programs_precompile_module
from sbm.programs.export import FORMATS as EXPORT_FORMATS
from sbm.programs.info import check, info
from sbm.programs.predict import predict
from sbm.programs.reporting import page as reporting_page_module
from sbm.programs.reporting.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    BarChart,
    LineChart,
    Scale,
    Series,
)
from sbm.programs.reporting.figures import SECONDS, read_run
from sbm.programs.reporting.page import first_charts, to_html
from sbm.programs.reporting.picture import check_confusion, path_charts, write_confusion
from sbm.programs.split import split
from sbm.programs.streaming import plan as streaming_plan_module
from sbm.programs.streaming import state as streaming_state_module
from sbm.programs.streaming.arrivals import (
    ANY,
    Arrivals,
    Needs,
    NewRows,
    Reached,
    TextOptions,
    arrays_of,
)
from sbm.programs.streaming.incremental import Incremental
from sbm.programs.streaming.plan import LEAST_ROWS, MOST_ROWS, StreamPlan, parsers_of, plan_stream
from sbm.programs.streaming.progressive import FIRST_MARK, Progressive, row_losses
from sbm.programs.train import train, train_ranks
from sbm.programs.training import columns as training_columns_module
from sbm.programs.training import dual as training_dual_module
from sbm.programs.training import ranks as training_ranks_module
from sbm.programs.training import task as training_task_module
from sbm.programs.training import turns as training_turns_module
from sbm.programs.training.calibration import Collector
from sbm.programs.training.dual import Dual
from sbm.programs.training.evaluation import METRICS, Evaluation
from sbm.programs.training.job import Job, TrainOptions
from sbm.programs.training.needs import near_capacity, plan_of, shape_of
from sbm.programs.training.ranks import StatusFile
from sbm.programs.training.scales import scale_features
from sbm.programs.training.state import open_run
from sbm.programs.training.task import Task
from sbm.programs.training.training import Method, Training
from sbm.programs.training.turns import divide_classes
from sbm.programs.training.validation import hold_out
from sbm.programs.tune import tune
from sbm.programs.tuning import sparse as tuning_sparse_module
from sbm.programs.tuning.dense import CrossValidation, fork
from sbm.rows import SPARE as ROWS_SPARE
from sbm.rows import Arena, Rows
from sbm.settings import SETTINGS, Settings, nearest
from sbm.solver.block import Block
from sbm.solver.byclass import ByClass, Tables, TablesFullError, divide, wake
from sbm.solver.cache import POLICIES, WorkingSet
from sbm.solver.conjugate import Preconditioner
from sbm.solver.gap import Certificate, Certifier, GapWatch, ray
from sbm.solver.kernels import classes as kernels_classes_module
from sbm.solver.kernels import common as kernels_common_module
from sbm.solver.kernels.vectors import PLAIN
from sbm.solver.l1 import _Newton as SparseNewton
from sbm.solver.metric import Metric
from sbm.solver.newton import MARGIN_ROW
from sbm.solver.onepass import OnePass, Size, caches_nnz
from sbm.solver.passline import Bend, PassLine, Reach
from sbm.solver.problem import (
    AnyProblem,
    Damping,
    MultiProblem,
    OneClass,
    Problem,
    Rounds,
    squared_norm,
)
from sbm.solver.proximal import units_for
from sbm.solver.scoring import Scoring
from sbm.solver.step import Screen, Solver, Step
from sbm.solver.sums import Sums, exponential
from sbm.solver.tangents import ParallelTangents
from sbm.solver.variables import DenseSet, ListPool, admit_block
from sbm.store import blocks as store_blocks_module
from sbm.store import container as store_container_module
from sbm.store import files as store_files_module
from sbm.store import run as store_run_module
from sbm.store.blocks import (
    CHUNK_NNZ,
    CHUNK_ROWS,
    NONZERO_BYTES,
    BlockStore,
    BlockWriter,
    Chunk,
    names_of,
    require_whole,
    write_manifest,
)
from sbm.store.codec import decode_rows, encode_rows, gather_rows
from sbm.store.container import Buffers
from sbm.store.decoded import DecodedChunks
from sbm.store.files import lock
from sbm.store.manifest import read_manifest
from sbm.store.records import checksum, decode_record, encode_record
from sbm.store.run import Place as AlphaPlace
from sbm.store.run import Run, run_folder, runs_here, sources_at
from sbm.store.shards import SHARD, Shard, read_shard, shard_path
from sbm.units import (
    format_number,
    format_size,
    padding,
    parse_duration,
    parse_grid,
    parse_moment,
    parse_size,
    shorten,
    to_whole,
    width_of,
)

# Where the names are that tests replace.
_PLACES = {
    "CHUNK_NNZ": "sbm.store.blocks",
    "CHUNK_ROWS": "sbm.store.blocks",
    "COMMIT_SECONDS": "sbm.programs.training.training",
    "COMMIT_SHARE": "sbm.programs.training.training",
    "DENSE": "sbm.engine.sync",
    "Dealer": "sbm.dataset.fill",
    "TemporaryFile": "sbm.dataset.weights",
    "fill.Filling": "sbm.dataset.fill",
    "fill.system_limit": "sbm.dataset.fill",
    "EVICTED_BYTES": "sbm.programs.training.state",
    "FIRST_BLOCK": "sbm.programs.streaming.state",
    "FREQUENT": "sbm.engine.sync",
    "JUDGED": "sbm.programs.streaming.state",
    "LARGEST_BATCH": "sbm.dataset.options",
    "LEAST_BYTES": "sbm.engine.pace",
    "LEAST_NNZ": "sbm.engine.sync",
    "MOST_BYTES": "sbm.distributed.comm",
    "MOST_CLASSES": "sbm.programs.training.turns",
    "MOST_GRAM": "sbm.solver.l1",
    "MOST_LABELS": "sbm.dataset.coding",
    "MOST_LISTED": "sbm.engine.sync",
    "MOST_SOURCES": "sbm.inputs.formats",
    "MOST_WHOLE": "sbm.engine.memory",
    "PATIENCE": "sbm.programs.training.validation",
    "PassCost": "sbm.programs.training.dual",
    "RANGE": "sbm.inputs.remote",
    "SCORES": "sbm.dataset.batches",
    "SLICE": "sbm.distributed.comm",
    "SMALL": "sbm.distributed.comm",
    "SMALL_BLOCK": "sbm.dataset.deal",
    "SPARE": "sbm.engine.sync",
    "STOP_SHARE": "sbm.programs.training.dual",
    "SUMS": "sbm.engine.sync",
    "UNWRITTEN_BYTES": "sbm.programs.training.state",
    "Unpacked": "sbm.inputs.text",
    "_CLOSE": "sbm.engine.machine",
    "_DENSE_CLASSES": "sbm.models.metrics",
    "_EXACT_ROWS": "sbm.models.metrics",
    "_LEAST_NEAR": "sbm.programs.training.needs",
    "_LISTING": "sbm.inputs.remote",
    "_NEW_IDS": "sbm.programs.streaming.arrivals",
    "_NNZ": "sbm.programs.cat",
    "_OBJECTS": "sbm.store.decoded",
    "calls._function": "sbm.compiled.calls",
    "cache.NATIVE": "sbm.compiled.cache",
    "cache.PACKAGE": "sbm.compiled.cache",
    "processor.runs": "sbm.compiled.processor",
    "_PART": "sbm.models.model",
    "_PENDING": "sbm.models.metrics",
    "_PIECE": "sbm.models.probabilities",
    "_READ": "sbm.models.liblinear",
    "_SHRINK": "sbm.programs.training.columns",
    "_TEXT_BYTES": "sbm.models.liblinear",
    "_WAIT": "sbm.inputs.remote",
    "_WITHIN": "sbm.programs.training.columns",
    "_cut_block": "sbm.engine.memory",
    "_find_launcher": "sbm.distributed.launch",
    "become": "sbm.distributed.launch",
    "_join": "sbm.programs.training.turns",
    "_newton": "sbm.models.probabilities",
    "_open": "sbm.inputs.text",
    "_others": "sbm.cli.processes",
    "_process_limits": "sbm.engine.machine",
    "_swap": "sbm.store.files",
    "_sync": "sbm.store.files",
    "_take_back": "sbm.dataset.destination",
    "child.compile_all": "sbm.compiled.child",
    "child._compile": "sbm.compiled.child",
    "decode_rows": "sbm.store.blocks",
    "folder": "sbm.compiled.cache",
    "keep": "sbm.compiled.cache",
    "source_of": "sbm.compiled.processor",
    "make": "sbm.compiled.child",
    "info": "sbm.programs.info",
    "kernels._is_there": "sbm.engine.kernels",
    "kernels.is_there": "sbm.engine.kernels",
    "kernels.resident_bytes": "sbm.engine.kernels",
    "kernels.specializations": "sbm.engine.kernels",
    "kernels.system_limit": "sbm.engine.kernels",
    "kernels.usable_threads": "sbm.engine.kernels",
    "precompile.is_there": "sbm.programs.precompile",
    "matrices.PIECE": "sbm.inputs.matrices",
    "MOST_FEATURES": "sbm.programs.training.task",
    "picture._CELLS": "sbm.programs.reporting.picture",
    "plan": "sbm.programs.plan",
    "plan_stream": "sbm.programs.streaming.state",
    "streaming.system_limit": "sbm.programs.streaming.state",
    "put_in_place": "sbm.dataset.destination",
    "replace_weights": "sbm.programs.training.dual",
    "machine.resident_bytes": "sbm.engine.machine",
    "resident_bytes": "sbm.programs.training.job",
    "room_for_rows": "sbm.dataset.deal",
    "rows_ahead": "sbm.solver.problem",
    "run_compiler": "sbm.compiled.child",
    "crosses._MOST": "sbm.inputs.columns.crosses",
    "delimited.PIECE": "sbm.inputs.delimited",
    "tables._CELLS": "sbm.inputs.tables",
    "text.PIECE": "sbm.inputs.text",
    "passline._FIRST": "sbm.solver.passline",
    "rows._FEW": "sbm.rows",
    "training.seconds_left": "sbm.programs.training.training",
    "problem.FIRST": "sbm.solver.problem",
    "usable_threads": "sbm.programs.training.ranks",
    "world": "sbm.distributed.comm",
}


def patch(monkeypatch: pytest.MonkeyPatch, key: str, value: object) -> None:
    """Replace an inside name, `NAME` or `module.NAME`, until the test ends."""
    monkeypatch.setattr(import_module(_PLACES[key]), key.rpartition(".")[2], value)


__all__ = [
    "ANY",
    "BOTTOM",
    "CHUNK_NNZ",
    "CHUNK_ROWS",
    "DIRECT_LIMIT",
    "EXIT_TIMEOUT",
    "EXPORT_FORMATS",
    "FIRST_MARK",
    "FULL_PASS",
    "GROUPS",
    "HEIGHT",
    "INPUT_FORMATS",
    "INTERPRETER",
    "LEAST_BYTES",
    "LEAST_ROWS",
    "LEFT",
    "LIBSVM_REASONS",
    "LOSSES",
    "MARGIN_ROW",
    "METHODS",
    "METRICS",
    "MOST",
    "MOST_ROWS",
    "NONZERO_BYTES",
    "OPTIONS",
    "PARSING_SPARE",
    "PLAIN",
    "POLICIES",
    "RIGHT",
    "ROUNDED_LABEL",
    "ROWS_SPARE",
    "SECONDS",
    "SETTINGS",
    "SHARD",
    "TAIL",
    "TOP",
    "USUAL",
    "VW_REASONS",
    "WIDTH",
    "_SIZES",
    "AlphaPlace",
    "Alphas",
    "AnyProblem",
    "Arena",
    "Arrivals",
    "Asked",
    "BarChart",
    "Batch",
    "Bend",
    "BinaryMetrics",
    "Block",
    "BlockStore",
    "BlockWriter",
    "Buffers",
    "ByClass",
    "Certificate",
    "Certifier",
    "Chunk",
    "Collector",
    "Column",
    "Columns",
    "Combiner",
    "Comm",
    "CrossValidation",
    "Damping",
    "Dealer",
    "DecodedChunks",
    "Dense",
    "DenseSet",
    "Dialect",
    "Dual",
    "Engine",
    "Evaluation",
    "Filling",
    "Folds",
    "GapWatch",
    "Group",
    "HeldOut",
    "IdTable",
    "Incremental",
    "InputOptions",
    "Job",
    "Labels",
    "Limit",
    "LineChart",
    "ListPool",
    "Lists",
    "LiveFile",
    "MemoryPlan",
    "Method",
    "Metric",
    "Model",
    "MpiComm",
    "MultiMetrics",
    "MultiProblem",
    "NameTable",
    "Names",
    "Naming",
    "Needs",
    "NewLabels",
    "NewRows",
    "NotebookProgress",
    "OneClass",
    "OnePass",
    "ParallelTangents",
    "ParsedText",
    "Part",
    "PassCost",
    "PassLine",
    "Patience",
    "Preconditioner",
    "ProbabilityMetrics",
    "Problem",
    "Progress",
    "Progressive",
    "Reach",
    "Reached",
    "RegressionMetrics",
    "Room",
    "Rounds",
    "RowWeights",
    "Rows",
    "Run",
    "Scale",
    "Scoring",
    "Screen",
    "SerialComm",
    "Series",
    "Settings",
    "Shape",
    "Shard",
    "Size",
    "Solver",
    "Source",
    "SourceProgress",
    "SparseNewton",
    "SparseWeights",
    "SplitOptions",
    "StatusFile",
    "Step",
    "StreamPlan",
    "Sums",
    "Tables",
    "TablesFullError",
    "Task",
    "Terminal",
    "TextOptions",
    "TrainOptions",
    "Training",
    "Unpacked",
    "WordTable",
    "Work",
    "WorkingSet",
    "admit_block",
    "arrays_of",
    "blend",
    "cache_module",
    "caches_nnz",
    "calibrate",
    "calls_module",
    "certify_each",
    "check",
    "check_confusion",
    "checksum",
    "child_module",
    "choose_blocks",
    "choose_cache_rows",
    "choose_rounds",
    "cli",
    "cli_processes_module",
    "cli_show_module",
    "clock",
    "compile_seconds",
    "convert_inputs",
    "convert_sources",
    "dataset_coding_module",
    "dataset_deal_module",
    "dataset_destination_module",
    "declared_module",
    "decode_record",
    "decode_rows",
    "default_model",
    "default_store",
    "distributed_comm_module",
    "divide",
    "divide_classes",
    "encode_record",
    "encode_rows",
    "engine_byclass_module",
    "engine_clock_module",
    "engine_columns_module",
    "engine_kernels_module",
    "engine_machine_module",
    "engine_memory_module",
    "engine_pace_module",
    "engine_prefetch_module",
    "engine_sync_module",
    "errors",
    "expand_inputs",
    "exponential",
    "first_charts",
    "fit_platt",
    "fit_softmax",
    "foresee_passes",
    "fork",
    "format_number",
    "format_of",
    "format_size",
    "gather_rows",
    "hash_names",
    "hold_out",
    "hurried_rounds",
    "in_python",
    "info",
    "inputs_remote_module",
    "interpreter_bytes",
    "is_falling",
    "is_pipe",
    "join",
    "kernels_classes_module",
    "kernels_common_module",
    "launch_line",
    "launched_size",
    "linker_module",
    "load",
    "lock",
    "main",
    "make_problems",
    "method_named",
    "models_model_module",
    "models_probabilities_module",
    "module_main",
    "names_of",
    "near_capacity",
    "nearest",
    "no_alphas",
    "number_lines",
    "open_inputs",
    "open_run",
    "padding",
    "parse_duration",
    "parse_grid",
    "parse_moment",
    "parse_size",
    "parse_text",
    "parse_vw",
    "parsers_of",
    "passes_left",
    "patch",
    "path_charts",
    "plan_of",
    "plan_stream",
    "plan_training",
    "predict",
    "probabilities",
    "processor_module",
    "programs_expire_module",
    "programs_plan_module",
    "programs_precompile_module",
    "ray",
    "read_manifest",
    "read_model",
    "read_options",
    "read_rows",
    "read_run",
    "read_shard",
    "reporting_page_module",
    "require_whole",
    "row_bytes",
    "row_losses",
    "row_place_bytes",
    "run_folder",
    "runs_here",
    "scale_features",
    "shape_of",
    "shard_path",
    "shorten",
    "smaller",
    "sources_at",
    "specializations",
    "split",
    "squared_norm",
    "stopped_clock",
    "store_blocks_module",
    "store_container_module",
    "store_files_module",
    "store_run_module",
    "streaming_plan_module",
    "streaming_state_module",
    "system_limit",
    "to_html",
    "to_whole",
    "train",
    "train_command",
    "train_ranks",
    "training_columns_module",
    "training_dual_module",
    "training_ranks_module",
    "training_task_module",
    "training_turns_module",
    "tune",
    "tuning_sparse_module",
    "units_for",
    "visit_all",
    "wake",
    "width_of",
    "window_of",
    "within_limit",
    "world",
    "write_confusion",
    "write_manifest",
    "write_model",
]
