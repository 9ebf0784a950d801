"""The anchors' metrics give the values that the anchors' own code gave, and ours does not have their defects."""

import json
from pathlib import Path

import pytest

from proteus_bench.score import anchors

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "anchors.json").read_text())["vectors"]
ROOMS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
LABELS = {"qa1": ROOMS, "qa4": ROOMS, "qa8": ("apple", "football", "milk", "nothing")}


def _ruler(given, expected):
    (prediction,), (references,) = given["preds"], given["refs"]
    if not references:
        for metric in (anchors.ruler_all, anchors.ruler_part):
            with pytest.raises(ValueError, match="without a reference"):
                metric(prediction, references)
        return
    assert round(100 * anchors.ruler_all(prediction, references), 2) == expected["string_match_all"]
    assert round(100 * anchors.ruler_part(prediction, references), 2) == expected["string_match_part"]


def _lm_eval_ruler(given, expected):
    doc = given["doc"]
    value = anchors.lm_eval_ruler(given["results"], doc["outputs"])
    for metric in ("process_results", "process_results_part"):
        wanted = expected[metric]
        assert wanted[str(doc["max_length"])] == pytest.approx(value)
        assert {v for length, v in wanted.items() if length != str(doc["max_length"])} <= {-1.0}


def _babilong(given, expected):
    arguments = given["target"], given["output"], given["question"], LABELS[given["task"]]
    assert anchors.babilong_compare(*arguments) is expected


CHECKS = {
    "ruler.string_match": _ruler,
    "ruler.postprocess": lambda g, e: _equal(anchors.ruler_postprocess(g["predict_str"]), e),
    "lmeval_ruler.pypi0413.process": _lm_eval_ruler,
    "lmeval_ruler": lambda g, e: _equal(anchors.lm_eval_ruler_mean(g["metrics"]), e),
    "longbench.normalize": lambda g, e: _equal(anchors.longbench_normalize(g["s"]), e),
    "longbench.qa_f1": lambda g, e: _equal(anchors.qa_f1(g["prediction"], g["ground_truth"]), pytest.approx(e)),
    "longbench.scorer": lambda g, e: _equal(anchors.longbench_score(g["predictions"], g["answers"]), e),
    "longbench2.extract": lambda g, e: _equal(anchors.longbench2_choice(g["response"]), e),
    "lmeval_longbench.qa": lambda g, e: _equal(
        {key: max(anchors.qa_f1(g["results"][0].strip(), a) for a in g["doc"]["answers"]) for key in e}, e
    ),
    "contains": lambda g, e: _equal(int(anchors.contains_any(g["prediction"], g["labels"])), e),
    "helmet.f1": lambda g, e: _equal(
        list(anchors.helmet_f1(g["prediction"], g["ground_truth"])), e["f1_precision_recall"]
    ),
    "helmet.parse_output": lambda g, e: _equal(anchors.helmet_parse(g["output"]), e),
    "babilong.compare": _babilong,
    "lmeval.stop": lambda g, e: _equal(anchors.cut_at_stops(g["generation"], g["stop"]), e),
}


def _equal(found, expected):
    assert found == expected


METRICS = [vector for vector in VECTORS if vector["area"] == "metric"]


@pytest.mark.parametrize("vector", METRICS, ids=[v["id"] for v in METRICS])
def test_the_values_of_the_anchors(vector):
    name = max((prefix for prefix in CHECKS if vector["id"].startswith(prefix)), key=len)
    CHECKS[name](vector["input"], vector["expected"])


def test_every_metric_vector_is_there():
    assert len(METRICS) == 59 and {max(p for p in CHECKS if v["id"].startswith(p)) for v in METRICS} == set(CHECKS)


def test_a_string_for_a_list_is_refused():
    for metric in (anchors.ruler_all, anchors.ruler_part, anchors.contains_any):
        with pytest.raises(TypeError, match="one string"):
            metric("0.31", "0.31")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (" kitchen.", True),
        ("Mary is in the kitchen", True),
        ("kitchen or garden", False),
        ("garden, hallway, kitchen", False),
        ("kitchens", False),
        ("kitchen\nQuestion: where is John? In the garden", True),
        ("kitchen Question: where is John? In the garden", True),
        ("I think. kitchen", False),
        ("", False),
    ],
)
def test_the_only_label_of_the_first_sentence_counts(output, expected):
    assert anchors.unique_label(["kitchen"], output, ROOMS, "Where is Mary?") is expected


def test_labels_of_the_question_do_not_count_against_an_answer():
    question = "What is north of the garden?"
    assert anchors.unique_label(["kitchen"], "The kitchen is north of the garden.", ROOMS, question)
    assert not anchors.unique_label(["kitchen"], "The garden is.", ROOMS, question)
