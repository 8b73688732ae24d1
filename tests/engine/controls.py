"""CONTROL: for each case and invariant a sabotage of the code, and the test that must fail under it.

    python -m tests.engine.controls [WORD]

copies the tree to a temporary folder, does one sabotage after another there, and runs its test: whatever passes under
sabotage proves nothing. ``docs/controls.md`` is this list as a table (``--write`` makes it anew).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.engine.reuse.controls import REUSE
from tests.server.controls import CONTROLS as SERVER

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "controls.md"


class Control(NamedTuple):
    what: str
    test: str
    """File and words to select tests by, as ``-k`` takes them, below tests/engine."""
    file: str
    old: str
    new: str
    """``old``, which stands once in ``file``, is replaced by it."""


ENGINE, KERNELS = "engine/plait_engine", "kernels/plait_kernels"
ORACLE, SAMPLING, REMOTE, MEMORY = "test_oracle.py", "test_sampling.py", "test_remote.py", "test_memory_plan.py"
FORWARD, GRAPHS = "test_fast_forward.py", "runner/test_graphs.py"
SCHEDULER, FAIRNESS, ABORTS = "scheduler/test_scheduler.py", "scheduler/test_fairness.py", "scheduler/test_aborts.py"
PREEMPTION, RANDOM = "scheduler/test_preemption.py", "scheduler/test_random_loads.py"
TUNING = "runner/test_tuning.py"

CONTROLS = (
    # State, chunks, neighbours ----------------------------------------------------------------------------------------
    Control(
        "case 3: a fresh slot is zero",
        f"{ORACLE}::fresh_requests_start_from_nothing",
        f"{ENGINE}/state/ledger.py",
        "                self._fill(group, taken, 0)",
        "                pass",
    ),
    Control(
        "case 4: what a token may not see is selected away, not multiplied by zero",
        f"{ORACLE}::mixed_load_gives_the_oracles_answers and gemma3",
        f"{KERNELS}/paged_attention/reference.py",
        "            first = rule.first_seen(last - (stop - start))",
        "            first = 0",
    ),
    Control(
        "case 8: a chunk goes on from the state behind the one before",
        f"{ORACLE}::cut_at_any_border",
        f"{KERNELS}/scan.py",
        "before = carried.pop() if follows else view[own]",
        "before = carried.pop() if follows else 0 * view[own]",
    ),
    Control(
        "case 24: padding rows own a reserved page and slot",
        f"{ORACLE}::padded_decodes_write_nothing",
        f"{ENGINE}/runner/rows.py",
        "self.padding_row = max_seqs",
        "self.padding_row = 0",
    ),
    Control(
        "case 25: a row's tables are those of who has it now",
        f"{ORACLE}::rows_that_change_hands",
        f"{ENGINE}/runner/runner.py",
        "if self._residents.get(sequence.row) != resident:",
        "if sequence.row not in self._residents:",
    ),
    Control(
        "a step is replayed only by the kernels that it was recorded with",
        f"{GRAPHS}::dropped_once_something and upgrade",
        f"{ENGINE}/runner/graphs.py",
        "self.kernels, self.kernels.generation)",
        "self.kernels, 0)",
    ),
    Control(
        "a step is replayed only on the memory that it was recorded with",
        f"{GRAPHS}::dropped_once_something and move_states",
        f"{ENGINE}/models/causal.py",
        "        self.bound = layout_of(states)",
        "        self.bound = ()",
    ),
    Control(
        "a recorded step refuses tensors of other sizes",
        f"{GRAPHS}::tensors_of_other_sizes",
        f"{ENGINE}/runner/graphs.py",
        "if place.shape != theirs.shape:",
        "if False:",
    ),
    Control(
        "case 25, DISTINCT: a row samples from its own logits",
        f"{ORACLE}::identical_prompts_at_once",
        f"{ENGINE}/runner/builder.py",
        "rows_of = ((int(end) - 1, place.row) for end, place in zip(borders[1:], layout, strict=True))",
        "rows_of = ((int(end) - 1 - i % 2, layout[i].row) for i, end in enumerate(borders[1:]))",
    ),
    Control(
        "case 26: a sequence's length is its own",
        f"{ORACLE}::does_not_depend_on_a_neighbours_length",
        f"{ENGINE}/runner/builder.py",
        "lengths_host=tuple(ends.tolist())",
        "lengths_host=(int(ends.max()),) * len(ends)",
    ),
    Control(
        "case 27: every token of a continuation moves the state",
        f"{ORACLE}::pieces_fed_one_after_another",
        f"{ENGINE}/runner/builder.py",
        "Chunk(base + begin, base + place.end, i)",
        "Chunk(base + place.end - 1, base + place.end, i)",
    ),
    Control(
        "case 28: every row behind the decodes is in the chunk table",
        f"{ORACLE}::share_a_step_in_any_order",
        f"{ENGINE}/runner/builder.py",
        "for i in range(first, len(layout)):",
        "for i in range(first, len(layout) - 1):",
    ),
    Control(
        "case 29: the same steps give the same bits",
        f"{ORACLE}::same_greedy_load",
        f"{ENGINE}/runner/runner.py",
        "logits = self.model.logits(wanted)\n",
        "logits = self.model.logits(wanted) + 1e-5 * torch.rand(1)\n",
    ),
    Control(
        "both loops give the same: a token still on the device is what the next step starts from",
        f"{ORACLE}::overlapped_loop_gives_the_same",
        f"{ENGINE}/runner/runner.py",
        "= self._last_tokens[built.pending.rows]",
        "= self._last_tokens[built.pending.rows] * 0 + 5",
    ),
    Control(
        "both loops give the same: penalties wait for the last token",
        f"{ORACLE}::overlapped_loop_gives_the_same",
        f"{ENGINE}/engine.py",
        "if before is None or not before.blocks_planning else None",
        "if before is None or True else None",
    ),
    # Preemption -------------------------------------------------------------------------------------------------------
    Control(
        "case 30: who was preempted starts over at 0",
        "test_preemption.py::preempted_sequences_give",
        f"{ENGINE}/scheduler/scheduler.py",
        "        sequence.scheduled = Position(0)",
        "        pass",
    ),
    Control(
        "case 30: and from a state of zero",
        "test_preemption.py::preempted_sequences_give and (granite or lfm2)",
        f"{ENGINE}/state/ledger.py",
        "                self._fill(group, taken, 0)",
        "                pass",
    ),
    Control(
        "case 30: a life of its own in the row tables",
        "test_preemption.py::comes_back_to_its_old_row",
        f"{ENGINE}/runner/runner.py",
        "resident = (sequence, sequence.admissions)",
        "resident = (sequence, 0)",
    ),
    Control(
        "case 30: a prompt that is scored again replaces its scores",
        "test_preemption.py::half_way",
        f"{ENGINE}/runner/prompt_scores.py",
        "scores[self.first :] =",
        "scores[len(scores) :] =",
    ),
    Control(
        "the youngest yields, never the oldest",
        f"{PREEMPTION}::oldest_is_never_preempted",
        f"{ENGINE}/scheduler/scheduler.py",
        "youngest = self.running[-1]",
        "youngest = self.running[0]",
    ),
    Control(
        "who lacks memory waits for the step in flight and does not yield to a younger one",
        f"{PREEMPTION}::oldest_is_never_preempted and overlapped",
        f"{ENGINE}/scheduler/scheduler.py",
        "                return rows, True",
        "                self._preempt(sequence) if not sequence.in_flight else None",
    ),
    Control(
        "memory in pieces is no reason to end a sequence",
        f"{PREEMPTION}::cut_up_by_others",
        f"{ENGINE}/scheduler/scheduler.py",
        "admit = self.preempted == preempted or not decodes",
        "admit = self.preempted == preempted",
    ),
    # Scheduling -------------------------------------------------------------------------------------------------------
    Control(
        "case 32: admission takes all it needs, or nothing",
        f"{RANDOM}::everything_ends",
        f"{ENGINE}/state/sequence_state.py",
        "return {**pages, **self._slot_demand}",
        "return pages | {g: 1 for g in self._slot_demand}",
    ),
    Control(
        "case 32: a prefill has all its pages before it starts",
        "state/test_sequence_state.py::never_needs_more_than_it_took",
        f"{ENGINE}/state/sequence_state.py",
        "self.group.pages_for(span) + 1)",
        "self.group.pages_for(span) - 1)",
    ),
    Control(
        "case 33: what can never fit is refused at entry",
        f"{SCHEDULER}::up_to_the_pool",
        f"{ENGINE}/scheduler/scheduler.py",
        "return self.ledger.fits_alone(demand)",
        "return True",
    ),
    Control(
        "case 33: what fits is not refused",
        f"{SCHEDULER}::up_to_the_pool",
        f"{ENGINE}/scheduler/scheduler.py",
        "return self.ledger.fits_alone(demand)",
        "return self.ledger.fits_alone({g: n + 1 for g, n in demand.items()})",
    ),
    Control(
        "case 33: no progress is an error and no loop",
        f"{SCHEDULER}::nothing_planned",
        f"{ENGINE}/engine.py",
        "        if not self._sequences:\n            return []",
        "        if self:\n            return []",
    ),
    Control(
        "case 34: decodes are in every step",
        f"{FAIRNESS}::delays_a_running_stream",
        f"{ENGINE}/scheduler/scheduler.py",
        "            if len(rows) == budget:\n",
        "            if len(rows) == budget or any(map(self._prefills, self.running)):\n",
    ),
    Control(
        "case 34: a step is no longer than the budget",
        f"{FAIRNESS}::delays_a_running_stream",
        f"{ENGINE}/scheduler/scheduler.py",
        "self._chunk_rows(left, admit)",
        "self._chunk_rows(budget, admit)",
    ),
    Control(
        "case 34: the prompt with the least to do has half",
        f"{FAIRNESS}::long_prompts_does_not_starve",
        f"{ENGINE}/scheduler/scheduler.py",
        "((prefilling[0], -(-budget // 2)), (shortest, budget), *",
        "((prefilling[0], budget), *",
    ),
    Control(
        "case 34: the oldest prompt has half",
        f"{FAIRNESS}::short_prompts_does_not_starve",
        f"{ENGINE}/scheduler/scheduler.py",
        "((prefilling[0], -(-budget // 2)), (shortest, budget), *",
        "((shortest, budget), *",
    ),
    Control(
        "the queue is not overtaken, and priority goes first",
        f"{SCHEDULER}::higher_priority",
        f"{ENGINE}/sequence.py",
        "return (self.request.priority, self.arrival)",
        "return (0, self.arrival)",
    ),
    Control(
        "window pages that are still seen are kept",
        f"{RANDOM}::everything_ends",
        f"{ENGINE}/state/spec.py",
        "max(0, position - self.window + 1)",
        "max(0, position - self.window + 6)",
    ),
    Control(
        "no page is handed out before a sequence has outgrown those it has, nor after",
        f"{RANDOM}::everything_ends",
        f"{ENGINE}/state/sequence_state.py",
        "        self.capacity = min((run.capacity for run in self.runs.values()), default=sys.maxsize)",
        "        self.capacity = max((run.capacity for run in self.runs.values()), default=sys.maxsize) + 1",
    ),
    # Aborts and ends --------------------------------------------------------------------------------------------------
    Control(
        "case 37: what ended while in flight is released when its step lands",
        f"{ABORTS}::abort_after_any_step and overlapped",
        f"{ENGINE}/engine.py",
        "            elif not row.sequence.in_flight:\n",
        "            elif False:\n",
    ),
    Control(
        "case 37: a reader that leaves stops the work",
        f"{REMOTE}::leaves_early",
        f"{ENGINE}/client.py",
        "            if not over:\n                self.abort(request.id)",
        "            pass",
    ),
    Control(
        "case 38: an aborted prompt gets no further chunk",
        f"{ABORTS}::abort_after_any_step and overlapped",
        f"{ENGINE}/scheduler/scheduler.py",
        "[s for s in self.running if s.finish is None and self._prefills(s)]",
        "[s for s in self.running if self._prefills(s)]",
    ),
    Control(
        "what a step in flight writes to is not released",
        f"{ABORTS}::in_flight_writes_to",
        f"{ENGINE}/engine.py",
        "        if not self._grammars.forget(sequence) and not sequence.in_flight:",
        "        if not self._grammars.forget(sequence):",
    ),
    Control(
        "aborted sequences leave the queue",
        f"{ABORTS}::aborted_in_the_queue",
        f"{ENGINE}/scheduler/scheduler.py",
        "        else:\n            self.waiting.remove(sequence)",
        "        else:\n            pass",
    ),
    Control(
        "500 aborts leave the neighbours right",
        "test_aborts.py::random_aborts and granite",
        f"{ENGINE}/state/ledger.py",
        "                self._fill(group, taken, 0)",
        "                pass",
    ),
    Control(
        "64 at once give the oracle's answers",
        "test_aborts.py::sixty_four",
        f"{ENGINE}/runner/builder.py",
        "self.tables.slots[group.id][:, rows]",
        "self.tables.slots[group.id][:, np.maximum(rows, 1)]",
    ),
    Control(
        "500 aborts on the demo leave the neighbours right",
        "test_demo.py::five_hundred and plain",
        f"{ENGINE}/state/ledger.py",
        "                self._fill(group, taken, 0)",
        "                pass",
    ),
    Control(
        "64 at once on the demo are answered as alone",
        "test_demo.py::sixty_four and plain",
        f"{ENGINE}/runner/builder.py",
        "self.tables.slots[group.id][:, rows]",
        "self.tables.slots[group.id][:, np.maximum(rows, 1)]",
    ),
    # Sampling ---------------------------------------------------------------------------------------------------------
    Control(
        "a seed's stream does not depend on the batch",
        f"{SAMPLING}::same_tokens_whatever_else",
        f"{ENGINE}/runner/sampler.py",
        "uniform(row.sequence.seed, row.sequence.index, row.end)",
        "uniform(row.sequence.seed, row.sequence.row, row.end)",
    ),
    Control(
        "the sequences of a request draw different streams",
        f"{SAMPLING}::different_streams",
        f"{ENGINE}/runner/sampler.py",
        "uniform(row.sequence.seed, row.sequence.index, row.end)",
        "uniform(row.sequence.seed, 0, row.end)",
    ),
    Control(
        "log-probabilities are the model's own",
        f"{SAMPLING}::not_of_what_the_parameters",
        f"{ENGINE}/runner/sampler.py",
        "self.kernels.logprobs(logits, token_ids",
        "self.kernels.logprobs(shaped, token_ids",
    ),
    Control(
        "repetition covers prompt and output",
        f"{SAMPLING}::repetition_penalty",
        f"{ENGINE}/runner/sampler.py",
        "repeated.add(row, history.tokens, params",
        "repeated.add(row, history.tokens[history.counts > 0], params",
    ),
    Control(
        "frequency counts",
        f"{SAMPLING}::frequency_penalty_grows",
        f"{ENGINE}/runner/history.py",
        "self._counts[place] += position",
        "self._counts[place] = position",
    ),
    Control(
        "min_tokens holds back end tokens and stop tokens",
        f"{SAMPLING}::holds_back_every_end",
        f"{ENGINE}/runner/sampler.py",
        "[*self._eos, *params.stop_token_ids]",
        "[*self._eos]",
    ),
    Control(
        "a stop token is named",
        f"{SAMPLING}::stop_token_ends_and_is_named",
        f"{ENGINE}/finish.py",
        "return End(FinishReason.STOP, token)",
        "return End(FinishReason.STOP)",
    ),
    Control(
        "scores of a prompt are of its next token, chunk by chunk",
        f"{SAMPLING}::prompt_scores_without_generation",
        f"{ENGINE}/runner/prompt_scores.py",
        "begin = segments.starts_host[place if place < plan.decodes else place + pads]",
        "begin = segments.starts_host[place]",
    ),
    # Memory -----------------------------------------------------------------------------------------------------------
    Control(
        "case 36: planned weights are the allocated ones",
        f"{MEMORY}::to_the_byte and (gemma3 or lfm2)",
        f"{ENGINE}/models/base.py",
        " + sum(t.nbytes for t in self.buffers())",
        "",
    ),
    Control(
        "case 36: no step needs more than was planned",
        f"{MEMORY}::nor_much_less and granite",
        f"{ENGINE}/activations.py",
        "chunk = min(limits.max_batch_tokens - decodes, length)",
        "chunk = min(limits.max_batch_tokens - decodes, length) // 2",
    ),
    Control(
        "case 36: nor is much more planned than a step needs",
        f"{MEMORY}::nor_much_less and granite",
        f"{ENGINE}/activations.py",
        "MARGIN = 1.05",
        "MARGIN = 1.25",
    ),
    Control(
        "case 36: concurrency is clamped to what memory holds",
        f"{MEMORY}::small_budget",
        f"{ENGINE}/memory_plan.py",
        "    if need(most) > budget_bytes:",
        "    if need(1) > budget_bytes:",
    ),
    Control(
        "case 36: the concurrency that is told is what fits",
        f"{MEMORY}::concurrency_that_is_told",
        f"{ENGINE}/memory_plan.py",
        "reserved = 1 if group.paged else group.units_per_slot",
        "reserved = 0",
    ),
    Control(
        "case 36: too little memory is refused before loading",
        f"{MEMORY}::refused_before_anything",
        f"{ENGINE}/memory_plan.py",
        "    if most < 1:",
        "    if most < -1:",
    ),
    # The process ------------------------------------------------------------------------------------------------------
    Control(
        "case 35: the queue has a bound",
        f"{REMOTE}::five_thousand",
        f"{ENGINE}/remote.py",
        "        if unfinished and unfinished + request.n > info.max_seqs + info.max_queue:",
        "        if False:",
    ),
    Control(
        "case 39: an id in use is refused",
        f"{REMOTE}::id_in_use",
        f"{ENGINE}/remote.py",
        "        if request.id in self._requests:",
        "        if False:",
    ),
    Control(
        "case 51: figures that raise do not stop a step",
        "test_stats.py::engine_goes_on",
        f"{ENGINE}/stats.py",
        "        except Exception:\n            return",
        "        except ZeroDivisionError:\n            return",
    ),
    Control(
        "case 51: nor the engine process",
        "test_stats.py::process_answers",
        f"{ENGINE}/process.py",
        "        except Exception:  # Figures must not stop the engine.",
        "        except ZeroDivisionError:",
    ),
    Control(
        "case 52: a killed engine ends all that waits",
        f"{REMOTE}::killed_engine",
        f"{ENGINE}/remote.py",
        "            self._end(request_id, error)",
        "            pass",
    ),
    Control(
        "case 52: also what comes before the death is noticed",
        f"{REMOTE}::killed_engine",
        f"{ENGINE}/remote.py",
        "self._socket.send(encode(message), zmq.NOBLOCK)",
        "self._socket.send(encode(message))",
    ),
    Control(
        "case 52: a blocked step shows",
        f"{REMOTE}::blocked_step",
        f"{ENGINE}/remote.py",
        '            raise EngineDead("the engine does not answer") from None',
        "            return EngineStats()",
    ),
    Control(
        "an idle engine is not called silent",
        f"{REMOTE}::idle_for_long",
        f"{ENGINE}/remote.py",
        "heartbeat_seconds=time.monotonic() - asked)",
        "heartbeat_seconds=time.monotonic())",
    ),
    Control(
        "a listener that breaks ends everything",
        f"{REMOTE}::listener_that_breaks",
        f"{ENGINE}/remote.py",
        "        except Exception as error:  # Nobody else reads",
        "        except ZeroDivisionError as error:  # Nobody else reads",
    ),
    Control(
        "an engine whose parent was killed ends itself",
        f"{REMOTE}::parent_was_killed and ready",
        f"{ENGINE}/process.py",
        "os.getppid() == self._parent and",
        "",
    ),
    Control(
        "an engine whose parent was killed while it starts ends itself",
        f"{REMOTE}::start_that_takes_long",
        f"{ENGINE}/process.py",
        "            if os.getppid() != parent:",
        "            if False:",
    ),
    Control(
        "shutdown leaves no child",
        f"{REMOTE}::during_start_up",
        f"{ENGINE}/remote.py",
        "                child.kill()  # It does not listen before it is ready.",
        "                return",
    ),
    Control(
        "an engine that cannot start says why",
        f"{REMOTE}::cannot_start_says_why",
        f"{ENGINE}/process.py",
        "            self._send(Failed(str(error)))",
        "            pass",
    ),
    Control(
        "ids outside the vocabulary never reach a step",
        f"{SCHEDULER}::longer_than_the_model_allows",
        f"{ENGINE}/engine.py",
        "            if ids and not 0 <= min(ids)",
        "            if False and not 0 <= min(ids)",
    ),
    Control(
        "offline: a call that fails leaves nothing",
        "test_llm.py::leaves_nothing",
        f"{ENGINE}/llm.py",
        "                self.engine.abort(id)",
        "                pass",
    ),
    # Fast-forward -----------------------------------------------------------------------------------------------------
    Control(
        "what is forced is computed at once",
        f"{FORWARD}::forced_run_is_one_step",
        f"{ENGINE}/scheduler/scheduler.py",
        "count = 1 if short else min(sequence.remaining, 1 + forced)",
        "count = 1",
    ),
    Control(
        "what is forced leaves prompts half of what there is",
        f"{FORWARD}::forced_runs_and_a_long_prompt",
        f"{ENGINE}/scheduler/scheduler.py",
        "forced = max(0, budget - len(self.running)) // 2",
        "forced = max(0, budget - len(self.running))",
    ),
    Control(
        "a forced token is an end where a sampled one would be",
        f"{FORWARD}::stop_token_in_a_forced_run",
        f"{ENGINE}/growth.py",
        "            if (end := finish_after(sequence, self._eos, self._max_model_len)) is not None:",
        "            if (end := finish_after(sequence, self._eos, self._max_model_len)) and token == [*tokens][-1]:",
    ),
    Control(
        "a grammar is told of what it forced",
        f"{FORWARD}::answers_are_those_of_sampling and granite-plain",
        f"{ENGINE}/growth.py",
        "            end = self._append(sequence, forced)\n            verdict = self._grammars.follow(sequence)",
        "            end = self._append(sequence, forced)",
    ),
    Control(
        "only the last token of a forced run is sampled behind",
        f"{FORWARD}::longer_than_a_step and 5-granite",
        f"{ENGINE}/scheduler/scheduler.py",
        "samples = end == sequence.length and sequence.request.sampling.max_tokens > 0",
        "samples = sequence.request.sampling.max_tokens > 0",
    ),
    Control(
        "who wants log-probabilities has each token sampled",
        f"{FORWARD}::who_wants_log_probabilities",
        f"{ENGINE}/runner/grammars.py",
        "        if not self._fast_forward or sequence.request.sampling.logprobs is not None:",
        "        if not self._fast_forward:",
    ),
    # Tuning -----------------------------------------------------------------------------------------------------------
    Control(
        "a configuration whose result is not the default's is not chosen",
        f"{TUNING}::configuration_that_is_wrong",
        f"{KERNELS}/tuning/search.py",
        "        if error > truth.limit:",
        "        if False:",
    ),
    Control(
        "who dies of a configuration does not try it at the next start",
        f"{TUNING}::who_dies_of_a_configuration",
        f"{ENGINE}/runner/tuning.py",
        "    shelf.put(case.ask, default)\n    try:",
        "    try:",
    ),
    Control(
        "tuning has an end",
        f"{TUNING}::time_is_over",
        f"{ENGINE}/runner/tuning.py",
        "    while left and not bench.over():",
        "    while left:",
    ),
    Control(
        "memory that tuning has taken is given back",
        f"{TUNING}::nothing_is_left_behind",
        f"{ENGINE}/runner/own_rows.py",
        "                state.release(self._ledger)",
        "                pass",
    ),
    Control(
        "ops are as they were when tuning is over",
        f"{TUNING}::nothing_is_left_behind",
        f"{ENGINE}/runner/tuning_cases.py",
        "            setattr(kernels, name, op)",
        "            pass",
    ),
    # Prefix reuse -----------------------------------------------------------------------------------------------------
    *(Control(*row) for row in REUSE),
    # The server -------------------------------------------------------------------------------------------------------
    *(Control(*row) for row in SERVER),
)


def table() -> str:
    rows = [
        f"| {c.what} | `{c.test.replace('::', ' -k ')}` | `{Path(c.file).name}`: `{_line(c.old)}` to `{_line(c.new)}` |"
        for c in CONTROLS
    ]
    return "\n".join(
        [
            "# Controls",
            "",
            "A test that cannot fail proves nothing. For each case and invariant, this is the sabotage under which its",
            "test was seen to fail. `python -m tests.engine.controls` does all of them again, in a copy of the tree;",
            "the tests are named from `tests/engine`.",
            "",
            "| what must hold | test | sabotage |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _line(code: str) -> str:
    return " ".join(code.replace("|", "\\|").split()) or "nothing"


def replay(word: str = "") -> Iterator[tuple[Control, bool]]:
    """Each control, and whether its test failed as it must."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "plait"
        for part in ("engine", "kernels", "server", "tests", "benchmarks"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        for control in CONTROLS:
            if word not in control.what + control.test:
                continue
            path = copy / control.file
            whole = path.read_text()
            assert whole.count(control.old) == 1, f"{control.what}: {control.old!r} is not once in {control.file}"
            path.write_text(whole.replace(control.old, control.new))
            yield control, _fails(copy, control.test)
            path.write_text(whole)


def _fails(copy: Path, test: str) -> bool:
    file, words = test.split("::")
    paths = os.pathsep.join(str(copy / part) for part in ("server", "engine", "kernels", "."))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    command += ["--timeout", "120", f"tests/engine/{file}", "-k", words]
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return done.returncode == 1


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(table())
        return
    blind = 0
    for control, failed in replay(*sys.argv[1:2]):
        blind += not failed
        print(f"{'seen' if failed else 'NOT SEEN':8}  {control.what}  ({control.test})", flush=True)
    sys.exit(bool(blind))


if __name__ == "__main__":
    main()
