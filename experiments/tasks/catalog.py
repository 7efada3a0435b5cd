"""The project's tasks: what is generated, and sets that others published.

A file of a published set is a table with the columns of the Hugging Face hub.

lm-evaluation-harness 0.4.13 makes none of these prompts: it draws worked
examples from the set, words questions otherwise, or compares likelihoods.
"""

from collections.abc import Mapping
from typing import Any

from experiments.tasks import generated
from experiments.tasks.answer_metrics import UNANSWERABLE, normalise
from experiments.tasks.data_files import get_field, get_text, get_texts
from experiments.tasks.task import SPLITS, Source, Task

# Sets whose test answers are secret: results are of the development set.
_DEVELOPMENT_SPLITS = {'train': 'train', 'test': 'validation'}
# Categories of Spec-Bench that are not of MT-bench, which has its own.
_SPEC_BENCH_CATEGORIES = (
  'translation summarization qa math_reasoning rag'
).split()


def _trivia_qa_fields(row: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns a question and its answers, of which no two are one if normal."""
  texts = [
    get_text(row, 'answer.value'),
    *get_texts(row, 'answer.aliases'),
    *get_texts(row, 'answer.normalized_aliases'),
  ]
  # Most aliases have the normal form of another answer.
  different: dict[str, str] = {}
  for text in map(str.strip, texts):
    different.setdefault(normalise(text), text)
  return {**row, 'answers': [*different.values()]}


def _spec_bench_fields(row: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the first turn of a conversation, and an id with its category."""
  category, key = get_field(row, 'category'), get_field(row, 'question_id')
  group = category if category in _SPEC_BENCH_CATEGORIES else 'mt_bench'
  question, *_ = (*get_texts(row, 'turns'), '')
  return {'id': f'{group}/{key}', 'question': question}


# An answer is right if it equals an accepted one after SQuAD's normalisation;
# questions without an accepted answer count as answered wrong.
_SHORT_ANSWERS: dict[str, Any] = dict(
  metrics=('short_answer',), shots=1, stop_strings=('\n',), max_new_tokens=32
)
# Captions of pictures (Elliott et al. 2016, arXiv 1605.00459), task 1, from and
# to English; for research.
_MULTI30K: dict[str, Any] = dict(
  source=Source(
    download='test.jsonl and val.jsonl of'
    ' huggingface.co/datasets/bentrevett/multi30k',
    hub='bentrevett/multi30k',
    splits={split: split for split in SPLITS},
  ),
  metrics=('bleu', 'chrf'),
  shots=5,
  worked_beside='val.jsonl',
  stop_strings=('\n',),
  max_new_tokens=64,
)

CATALOG: tuple[Task, ...] = (
  Task(
    name='word_problems',
    problem=generated.draw_story,
    metrics=('marked_number',),
    max_new_tokens=128,
  ),
  Task(
    name='numerals',
    problem=generated.draw_numeral,
    metrics=('exact_match', 'chrf'),
    max_new_tokens=32,
  ),
  Task(
    name='roman',
    problem=generated.draw_roman,
    metrics=('exact_match',),
    max_new_tokens=24,
  ),
  # Grade school mathematics in words (Cobbe et al. 2021, arXiv 2110.14168), MIT
  # licence. The score `marked` tells a final number after #### from another.
  Task(
    name='gsm8k',
    source=Source(hub='openai/gsm8k', config='main'),
    answer='answer',
    metrics=('final_number',),
    shots=8,
    # A blank line does not end an answer: some reference answers contain one.
    stop_strings=('\nQuestion:',),
    max_new_tokens=400,
  ),
  # Questions on a passage, half of them without an answer in it (Rajpurkar et
  # al. 2018, arXiv 1806.03822), CC BY-SA 4.0. The official script expects an
  # empty answer there, which a language model cannot tell from having nothing
  # to say.
  Task(
    name='squad_v2',
    source=Source(hub='rajpurkar/squad_v2', splits=_DEVELOPMENT_SPLITS),
    key='id',
    question='Passage: {context}\nQuestion: {question}\nAnswer:',
    answer='answers.text',
    no_answer=UNANSWERABLE,
    metrics=('squad',),
    shots=2,
    stop_strings=('\n',),
    max_new_tokens=48,
  ),
  # Berant et al. 2013, EMNLP; no stated licence.
  Task(
    name='web_questions',
    source=Source(hub='Stanford/web_questions'),
    answer='answers',
    **_SHORT_ANSWERS,
  ),
  # The open variant (Kwiatkowski et al. 2019; Lee et al. 2019, arXiv
  # 1906.00300), CC BY-SA 3.0.
  Task(
    name='natural_questions',
    source=Source(
      hub='google-research-datasets/nq_open', splits=_DEVELOPMENT_SPLITS
    ),
    answer='answer',
    **_SHORT_ANSWERS,
  ),
  # Joshi et al. 2017, arXiv 1705.03551; Apache-2.0.
  Task(
    name='trivia_qa',
    source=Source(
      hub='mandarjoshi/trivia_qa',
      config='unfiltered.nocontext',
      splits=_DEVELOPMENT_SPLITS,
    ),
    fields=_trivia_qa_fields,
    key='question_id',
    answer='answers',
    **_SHORT_ANSWERS,
  ),
  # News and a few highlights, a line each, not anonymised (Hermann et al. 2015,
  # arXiv 1506.03340; See et al. 2017, arXiv 1704.04368). The code that makes it
  # is Apache-2.0, the articles belong to the papers.
  Task(
    name='cnn_dailymail',
    source=Source(hub='abisee/cnn_dailymail', config='3.0.0'),
    key='id',
    question='Article: {article}\nSummary:',
    answer='highlights',
    metrics=('rouge',),
    shots=1,
    stop_strings=('\n\n', '\nArticle:'),
    max_new_tokens=160,
  ),
  # News and one sentence (Narayan et al. 2018, arXiv 1808.08745). Its code is
  # MIT, the articles belong to the BBC. The hub keeps a table of what a script
  # would have to make.
  Task(
    name='xsum',
    source=Source(hub='EdinburghNLP/xsum', revision='refs/convert/parquet'),
    key='id',
    question='Article: {document}\nSummary:',
    answer='summary',
    metrics=('rouge',),
    shots=1,
    stop_strings=('\n',),
    max_new_tokens=96,
  ),
  # newstest2014 (Bojar et al. 2014, Findings of the Workshop on Statistical
  # Machine Translation); for research.
  Task(
    name='wmt14_en_de',
    source=Source(hub='wmt/wmt14', config='de-en'),
    question='English: {translation.en}\nGerman:',
    answer='translation.de',
    metrics=('bleu',),
    shots=5,
    stop_strings=('\n',),
    max_new_tokens=256,
  ),
  Task(
    name='multi30k_de_en',
    question='German: {de}\nEnglish:',
    answer='en',
    **_MULTI30K,
  ),
  Task(
    name='multi30k_en_de',
    question='English: {en}\nGerman:',
    answer='de',
    **_MULTI30K,
  ),
  # Prompts for measuring speed (Xia et al. 2024, arXiv 2401.07851), Apache-2.0:
  # 80 of each of six categories. There are no references, and quality is nan.
  Task(
    name='spec_bench',
    source=Source(
      download='question.jsonl of github.com/hemingkx/Spec-Bench',
      splits={'test': 'test'},
    ),
    fields=_spec_bench_fields,
    key='id',
    metrics=(),
    stop_strings=('\nQuestion:',),
    # The limit of the benchmark.
    max_new_tokens=1024,
  ),
)
