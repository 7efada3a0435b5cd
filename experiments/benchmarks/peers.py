"""Loops of other libraries, in processes of their own.

transformers and llama.cpp are not dependencies of this project. `Peer` starts a
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
from typing import Any

# Ways of decoding by library, and the largest batch of each: transformers
# assists a single row, and llama.cpp answers one prompt at a time.
MODES = {
  'transformers': {'plain': 2**30, 'assisted': 1, 'look-up': 1},
  'llama.cpp': {'plain': 1},
}


class Peer:
  """A process that answers prompts; a context manager."""

  def __init__(self, python: str, engine: str, spec: dict[str, Any]):
    self._name = f'{python} with {engine}'
    command = [python, __file__, engine, json.dumps(spec)]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    self._process = subprocess.Popen(
      command, stdin=pipe, stdout=pipe, stderr=null, text=True
    )
    # The process sends a line once its models are loaded.
    self.versions = self._receive()

  def __enter__(self) -> 'Peer':
    return self

  def __exit__(self, *_) -> None:
    with contextlib.suppress(OSError):
      self._process.stdin.close()
    self._process.wait()

  def answer(self, mode: str, batch: int) -> dict[str, Any]:
    """Answers all prompts."""
    with contextlib.suppress(BrokenPipeError):
      print(json.dumps([mode, batch]), file=self._process.stdin, flush=True)
    return self._receive()

  def _receive(self) -> dict[str, Any]:
    """Reads one JSON line from the process."""
    line = self._process.stdout.readline()
    if not line:
      raise ValueError(
        f'python: {self._name} ended; check that it can import the library, and'
        ' that the memory is large enough for the model.'
      )
    return json.loads(line)


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

  def answer(batch, **options):
    prefill_s = total_s = 0.0
    answers = []
    for i in range(0, len(spec['prompts']), batch):
      prompts = spec['prompts'][i : i + batch]
      # Reading a prompt gives the first token.
      prefill_s += _generate(model, prompts, spec | {'new_tokens': 1})[0]
      seconds, tokens = _generate(model, prompts, spec, **options)
      total_s += seconds
      answers += tokens
    return dict(
      prefill_s=prefill_s,
      decode_s=total_s - prefill_s,
      tokens=sum(len(tokens) - 1 for tokens in answers),
      first=answers[0],
    )

  libraries = {'torch': torch, 'transformers': transformers}
  look_up = dict(prompt_lookup_num_tokens=spec['gamma'])
  return {name: x.__version__ for name, x in libraries.items()}, {
    'plain': answer,
    'assisted': functools.partial(answer, assistant_model=drafter),
    'look-up': functools.partial(answer, **look_up),
  }


def _generate(
  model: Any, prompts: list[list[int]], spec: dict[str, Any], **options: Any
) -> tuple[float, list[list[int]]]:
  """Generates with transformers, and times it."""
  import torch

  longest = max(map(len, prompts))
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
      max_new_tokens=spec['new_tokens'],
      eos_token_id=spec['stop'],
      pad_token_id=0,
      **options,
    )
  seconds = time.perf_counter() - start
  rows, stop = out[:, longest:].tolist(), spec['stop']
  return seconds, [row[: (*row, stop).index(stop) + 1] for row in rows]


def _llama(spec: dict[str, Any]) -> tuple[dict[str, Any], Any]:
  """Loads a model in llama.cpp (xllamacpp) for greedy decoding."""
  import importlib.metadata

  import xllamacpp

  params = xllamacpp.CommonParams()
  params.model.path = spec['verifier']
  params.cpuparams.n_threads = spec['threads']
  params.cpuparams_batch.n_threads = spec['threads']
  params.n_ctx = 2048
  params.n_parallel = 1
  params.warmup = True
  server = xllamacpp.Server(params)

  def answer(batch):
    timings = [
      server.handle_completions(
        dict(
          prompt=prompt,
          n_predict=spec['new_tokens'],
          temperature=0.0,
          cache_prompt=False,
          stop=[spec['stop_text']],
        )
      )['timings']
      for prompt in spec['prompts']
    ]
    return dict(
      prefill_s=sum(timing['prompt_ms'] for timing in timings) / 1e3,
      decode_s=sum(timing['predicted_ms'] for timing in timings) / 1e3,
      # Reading the prompt gives the first token.
      tokens=sum(timing['predicted_n'] - 1 for timing in timings),
      # The server does not report token ids.
      first=None,
    )

  versions = {'xllamacpp': importlib.metadata.version('xllamacpp')}
  return versions, {'plain': answer}


def _main() -> None:
  """Answers requests, JSON lines of standard input, until there are no more."""
  engine, spec = sys.argv[1:]
  load = {'transformers': _transformers, 'llama': _llama}[engine]
  # Text that libraries print is discarded.
  with os.fdopen(os.dup(1), 'w') as out:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    versions, modes = load(json.loads(spec))
    print(json.dumps(versions), file=out, flush=True)
    for line in sys.stdin:
      mode, batch = json.loads(line)
      print(json.dumps(modes[mode](batch)), file=out, flush=True)


if __name__ == '__main__':
  _main()
