"""Other people's loops, in a process and a Python of their own.

transformers and llama.cpp are no part of this project. Where a Python has them,
`Peer` starts it with this very file, which imports nothing of ours. It answers
prompts when it is asked to, and says how long that took, so that its entrants
take turns with those here.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from typing import Any

# What a peer can do, and at how many rows: transformers assists a single one,
# and llama.cpp answers one prompt at a time.
KINDS = {
  'transformers': {'plain': 2**30, 'assisted': 1, 'look-up': 1},
  'llama.cpp': {'plain': 1},
}


class Peer:
  """A Python that answers prompts; use it as a context.

  Args:
    python: The interpreter.
    engine: 'transformers' or 'llama'.
    spec: What it loads and answers; see `_transformers` and `_llama`.

  Raises:
    ValueError: It does not start, or ends.

  Attributes:
    versions: Of its libraries, by their names.
  """

  def __init__(self, python: str, engine: str, spec: dict[str, Any]):
    self._name = f'{python} with {engine}'
    command = [python, __file__, engine, json.dumps(spec)]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
      self._process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=null, text=True
      )
    except OSError as error:
      raise ValueError(
        f'python: {python} cannot be started ({error.strerror}); name a Python.'
      ) from None
    # What it says once all is loaded.
    self.versions = self._hear()

  def __enter__(self) -> 'Peer':
    return self

  def __exit__(self, *_) -> None:
    with contextlib.suppress(OSError):
      self._process.stdin.close()
    self._process.wait()

  def answer(self, kind: str, batch: int) -> dict[str, Any]:
    """Answers all prompts.

    Args:
      kind: What it does; see `KINDS`.
      batch: How many prompts at a time.

    Returns:
      `prefill_s` and `decode_s`, `tokens` that `decode_s` was for, and `first`,
      the tokens of the first answer; None if they are not known.
    """
    print(json.dumps([kind, batch]), file=self._process.stdin, flush=True)
    return self._hear()

  def _hear(self) -> dict[str, Any]:
    line = self._process.stdout.readline()
    if not line:
      raise ValueError(
        f'python: {self._name} ended; see whether it can import that, and has'
        ' memory for the model.'
      )
    return json.loads(line)


def _transformers(spec: dict[str, Any]) -> tuple[dict[str, Any], Any]:
  """transformers, greedy.

  Args:
    spec: Folders of the `verifier` and the `drafter`, its `dtype`; `prompts`,
      token ids; `stop`, the token that ends an answer, and its most tokens,
      `new_tokens`; drafted tokens per block, `gamma`; `threads`.

  Returns:
    Versions; and functions of the batch by kind.
  """
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

  def generate(prompts, new_tokens, **more):
    longest = max(map(len, prompts))
    # Padded on the left, as it asks for.
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
        eos_token_id=spec['stop'],
        pad_token_id=0,
        **more,
      )
    seconds = time.perf_counter() - start
    rows, stop = out[:, longest:].tolist(), spec['stop']
    # With the token that ends it, and nothing after that.
    return seconds, [x[: (*x, stop).index(stop) + 1] for x in rows]

  def answer(batch, **more):
    prefill_s = whole_s = 0.0
    answers = []
    for i in range(0, len(spec['prompts']), batch):
      some = spec['prompts'][i : i + batch]
      # The first token comes of reading the prompt.
      prefill_s += generate(some, 1)[0]
      seconds, new = generate(some, spec['new_tokens'], **more)
      whole_s += seconds
      answers += new
    return dict(
      prefill_s=prefill_s,
      decode_s=whole_s - prefill_s,
      tokens=sum(len(one) - 1 for one in answers),
      first=answers[0],
    )

  libraries = {'torch': torch, 'transformers': transformers}
  look_up = dict(prompt_lookup_num_tokens=spec['gamma'])
  return {name: one.__version__ for name, one in libraries.items()}, {
    'plain': answer,
    'assisted': functools.partial(answer, assistant_model=drafter),
    'look-up': functools.partial(answer, **look_up),
  }


def _llama(spec: dict[str, Any]) -> tuple[dict[str, Any], Any]:
  """llama.cpp by xllamacpp, greedy, one prompt at a time.

  Args:
    spec: As for `_transformers`; the `verifier` is a GGUF file.

  Returns:
    Versions; and functions of the batch by kind.
  """
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
      prefill_s=sum(one['prompt_ms'] for one in timings) / 1e3,
      decode_s=sum(one['predicted_ms'] for one in timings) / 1e3,
      # The first token comes of reading the prompt.
      tokens=sum(one['predicted_n'] - 1 for one in timings),
      # It does not say which tokens they were.
      first=None,
    )

  versions = {'xllamacpp': importlib.metadata.version('xllamacpp')}
  return versions, {'plain': answer}


def _main() -> None:
  engine, spec = sys.argv[1:]
  load = {'transformers': _transformers, 'llama': _llama}[engine]
  # Whatever libraries print goes elsewhere.
  with os.fdopen(os.dup(1), 'w') as out:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    versions, kinds = load(json.loads(spec))
    print(json.dumps(versions), file=out, flush=True)
    # Kinds and batches, a line each, until there are no more.
    for line in sys.stdin:
      kind, batch = json.loads(line)
      print(json.dumps(kinds[kind](batch)), file=out, flush=True)


if __name__ == '__main__':
  _main()
