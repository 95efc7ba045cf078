"""One table of the papers' claims and whether they hold here, from the JSON results.

The scripts that wrote the results, every ``paper-*.json`` of a folder, decided the verdicts.
`scripts.docs_tables` writes the page.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

WORDS = (
    "SBM-1/2 and SBM-1/3: a cache of 1/2 and 1/3 of the memory for rows; -rand: of random rows; "
    "BMD: no cache; -in-3: 3 rounds a block; DCD: rows in memory; -S: rows at rest are left out; "
    "TRON: LIBLINEAR's Newton method; MIRA and CW: here passive-aggressive steps and AROW; (20): "
    "the paper's number of the measure; -like: made to resemble that data set."
)
VERDICTS = ("yes", "partly", "no", "dropped")
COLUMNS = ("claim", "data", "expected", "here", "holds")
HEADINGS = {
    "SBM 2011": "Chang & Roth, KDD 2011: selective block minimization",
    "DCD 2008": "Hsieh et al., ICML 2008: dual coordinate descent",
    "LIBLINEAR 2008": "Fan et al., JMLR 2008: LIBLINEAR",
    "WW 2016": "Alber et al., 2016: Weston-Watkins by pairs of classes",
}


def collect(folder: Path) -> list[dict[str, Any]]:
    """Return the claims in the results of a folder, each with the name of its file."""
    claims = []
    for path in sorted(folder.glob("paper-*.json")):
        report = json.loads(path.read_text("utf-8"))
        claims += [{**claim, "file": path.stem} for claim in report["tables"].get("claims", [])]
    return claims


def table(claims: list[dict[str, Any]]) -> str:
    """Write the claims as Markdown, a section a paper, counts first."""
    lines = ["# The papers' claims", "", _summary(claims), "", WORDS, ""]
    lines += ["| paper | claims | " + " | ".join(VERDICTS) + " |"]
    lines += ["|---" * (2 + len(VERDICTS)) + "|"]
    for paper in _papers(claims):
        counts = Counter(claim["holds"] for claim in claims if claim["paper"] == paper)
        numbers = [str(counts[verdict]) for verdict in VERDICTS]
        lines.append(f"| {paper} | {counts.total()} | {' | '.join(numbers)} |")
    for paper in _papers(claims):
        lines += ["", f"## {HEADINGS.get(paper, paper)}"]
        mine = [claim for claim in claims if claim["paper"] == paper]
        for file in dict.fromkeys(claim["file"] for claim in mine):
            lines += ["", f"From [`{file}`]({file}.md):", ""]
            lines += ["| where | " + " | ".join(COLUMNS) + " |", "|---" * 6 + "|"]
            lines += [_line(claim) for claim in mine if claim["file"] == file]
    return "\n".join(lines) + "\n"


def _papers(claims: list[dict[str, Any]]) -> list[str]:
    known = [paper for paper in HEADINGS if any(claim["paper"] == paper for claim in claims)]
    return list(dict.fromkeys([*known, *(claim["paper"] for claim in claims)]))


def _summary(claims: list[dict[str, Any]]) -> str:
    counts = Counter(claim["holds"] for claim in claims)
    numbers = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    return (
        f"{len(claims)} claims, each on one data set: {numbers}. A rule in a script decides each "
        "verdict; `expected` states it. The commands in [README.md](README.md) repeat the "
        "experiments; `python -m scripts.docs_tables` makes this page."
    )


def _line(claim: dict[str, Any]) -> str:
    why = f": {claim['why']}" if claim.get("why") else ""
    holds = claim["holds"] if claim["holds"] == "yes" else f"**{claim['holds']}**{why}"
    cells = [claim["where"], *(claim[name] for name in COLUMNS[:-1]), holds]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
