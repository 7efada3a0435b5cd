"""Loops of other libraries, in processes of their own.

transformers and llama.cpp are not dependencies of this project. `start` runs a
Python interpreter that has them with this file as a script, which imports
nothing of the project. The process answers prompts on request and reports the
times, so that its entrants take turns with those of this process.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

# The one way of decoding that answers several prompts at a time: transformers
# assists a row, and llama.cpp answers one.
BATCHED = 'transformers', 'plain'
# Versions of its libraries, its ways of decoding, and a function that answers
# all prompts.
Peer = tuple[dict[str, str], list[str], Callable[[str, int], dict[str, Any]]]


@contextlib.contextmanager
def start(python: str, engine: str, spec: dict[str, Any]) -> Iterator[Peer]:
  """Starts a process; yields versions, ways of decoding and `answer`."""
  command = [python, __file__, engine, json.dumps(spec)]
  pipe, null = subprocess.PIPE, subprocess.DEVNULL
  process = subprocess.Popen(
    command, stdin=pipe, stdout=pipe, stderr=null, text=True
  )

  def receive():
    line = process.stdout.readline()
    if not line:
      raise ValueError(
        f'python: {python} with {engine} ended; check that it can import the'
        ' library, and that the memory is large enough for the model.'
      )
    return json.loads(line)

  def answer(mode, batch):
    with contextlib.suppress(BrokenPipeError):
      print(json.dumps([mode, batch]), file=process.stdin, flush=True)
    return receive()

  try:
    # The process sends these once its models are loaded.
    versions, modes = receive()
    yield versions, modes, answer
  finally:
    with contextlib.suppress(OSError):
      process.stdin.close()
    process.wait()


def _transformers(spec: dict[str, Any]) -> tuple[dict[str, Any], Any]:
  """Loads models in transformers for greedy decoding."""
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  torch.set_num_threads(spec['threads'])
  model, drafter = (
    transformers.AutoModelForCausalLM.from_pretrained(
      spec[name], dtype=getattr(torch, spec['dtype'])
    ).eval()
    for name in ('verifier', 'drafter')
  )
  config = drafter.generation_config
  config.num_assistant_tokens = spec['gamma']
  config.num_assistant_tokens_schedule = 'constant'
  config.assistant_confidence_threshold = 0.0

  def generate(prompts, new_tokens, **options):
    longest, stop = max(map(len, prompts)), spec['stop']
    # transformers needs padding on the left.
    pads = [longest - len(prompt) for prompt in prompts]
    ids = [[0] * n + p for n, p in zip(pads, prompts, strict=True)]
    mask = [[0] * n + [1] * (longest - n) for n in pads]
    start = time.perf_counter()
    with torch.inference_mode():
      out = model.generate(
        torch.tensor(ids),
        attention_mask=torch.tensor(mask),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=stop,
        pad_token_id=0,
        **options,
      )
    seconds = time.perf_counter() - start
    rows = out[:, longest:].tolist()
    return seconds, [row[: (*row, stop).index(stop) + 1] for row in rows]

  def answer(batch, **options):
    prefill_s = total_s = 0.0
    answers = []
    for i in range(0, len(spec['prompts']), batch):
      prompts = spec['prompts'][i : i + batch]
      # Reading a prompt gives the first token.
      prefill_s += generate(prompts, 1)[0]
      seconds, rows = generate(prompts, spec['new_tokens'], **options)
      total_s, answers = total_s + seconds, answers + rows
    return dict(
      prefill_s=prefill_s,
      decode_s=total_s - prefill_s,
      tokens=sum(len(row) - 1 for row in answers),
      first=answers[0],
    )

  libraries = {'torch': torch, 'transformers': transformers}
  assisted = functools.partial(answer, assistant_model=drafter)
  modes = {'plain': answer, 'assisted': assisted}
  return {name: x.__version__ for name, x in libraries.items()}, modes


def _llama(spec: dict[str, Any]) -> tuple[dict[str, Any], Any]:
  """Prepares llama.cpp (xllamacpp) for greedy decoding."""
  import importlib.metadata

  import xllamacpp

  speculation = xllamacpp.common_speculative_type

  def answer(kind, batch):
    params = xllamacpp.CommonParams()
    params.model.path = spec['verifier']
    params.cpuparams.n_threads = spec['threads']
    params.cpuparams_batch.n_threads = spec['threads']
    params.n_ctx = 2048
    params.n_parallel = 1
    params.warmup = True
    if kind:
      drafts = params.speculative
      drafts.types = [getattr(speculation, f'COMMON_SPECULATIVE_TYPE_{kind}')]
      drafts.draft.mparams.path = spec['llama_drafter']
      drafts.draft.n_max = drafts.ngram_simple.size_m = spec['gamma']
      drafts.ngram_simple.size_n = 3
    # One at a time: a server that waits slows the others.
    server = xllamacpp.Server(params)
    options = dict(n_predict=spec['new_tokens'], temperature=0.0)
    options |= dict(cache_prompt=False, stop=[spec['stop_text']])
    timings = [
      server.handle_completions(options | dict(prompt=prompt))['timings']
      for prompt in spec['prompts']
    ]
    total = lambda name: sum(x.get(name, 0) for x in timings)  # noqa: E731
    return dict(
      prefill_s=total('prompt_ms') / 1e3,
      decode_s=total('predicted_ms') / 1e3,
      # Reading the prompt gives the first token.
      tokens=total('predicted_n') - len(timings),
      drafted=total('draft_n'),
      accepted=total('draft_n_accepted'),
    )

  modes = {'plain': None, 'n-grams': 'NGRAM_SIMPLE'}
  if spec['llama_drafter']:
    modes['assisted'] = 'DRAFT_SIMPLE'
  modes = {name: functools.partial(answer, x) for name, x in modes.items()}
  return {'xllamacpp': importlib.metadata.version('xllamacpp')}, modes


def _main() -> None:
  """Answers requests, JSON lines of standard input, until there are no more."""
  engine, spec = sys.argv[1:]
  load = {'transformers': _transformers, 'llama.cpp': _llama}[engine]
  # Text that libraries print is discarded.
  with os.fdopen(os.dup(1), 'w') as out:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    versions, modes = load(json.loads(spec))
    print(json.dumps([versions, [*modes]]), file=out, flush=True)
    for line in sys.stdin:
      mode, batch = json.loads(line)
      print(json.dumps(modes[mode](batch)), file=out, flush=True)


if __name__ == '__main__':
  _main()
