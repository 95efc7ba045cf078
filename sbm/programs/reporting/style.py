"""The style sheet of a report: light, dark, narrow and printed."""

__all__ = ["STYLE"]

# Colours have a contrast of at least 4.5 to their ground, those of lines of 3.
_LIGHT = """
--ground:#fbfbf9;--sheet:#fff;--ink:#1c2330;--soft:#566072;--hair:#e3e5ea;--edge:#c6cbd4;
--good:#12703a;--bad:#b3261e;--open:#8a5a00;--mark:#fff5d6;
--c0:#0b62a4;--c1:#c2410c;--c2:#15803d;--c3:#7c3aed;--c4:#946200;--c5:#be185d;--c6:#0f766e;
--c7:#475569;
--solve:#3d6fa5;--wait:#c2410c;--certify:#15803d;--write:#7c3aed;--combine:#946200;--rest:#8b93a1;
--load:#6b7280;--k1:#3d6fa5;--k2:#c2410c;--k3:#15803d;--k4:#8b93a1;
"""
_DARK = """
--ground:#12151b;--sheet:#191d25;--ink:#e6e9ef;--soft:#a3adbd;--hair:#2a303b;--edge:#434c5b;
--good:#6ddb8b;--bad:#ff8a80;--open:#f0c25a;--mark:#3a3115;
--c0:#6cb6ff;--c1:#ff9e64;--c2:#6ddb8b;--c3:#c4a7ff;--c4:#e5c453;--c5:#ff8fc0;--c6:#5eead4;
--c7:#a9b6c8;
--solve:#5d95d3;--wait:#ff9e64;--certify:#6ddb8b;--write:#c4a7ff;--combine:#e5c453;--rest:#8b97a8;
--load:#9aa5b5;--k1:#5d95d3;--k2:#ff9e64;--k3:#6ddb8b;--k4:#8b97a8;
"""
_COLOURS = "".join(f".c{k}{{--c:var(--c{k})}}" for k in range(8))
_AXES = ("time", "passes", "bytes")
_TABS = ",".join(f"#axis-{name}:checked~.panel.{name}" for name in _AXES)

STYLE = f"""
:root{{color-scheme:light;{_LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{_DARK}}}}}
@media print{{:root{{color-scheme:light;{_LIGHT}--ground:#fff}}}}
{_COLOURS}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}}
.patterns{{position:absolute}}
main{{max-width:1060px;margin:0 auto;padding:28px 20px 8px}}
footer{{max-width:1060px;margin:0 auto;padding:8px 20px 36px;color:var(--soft);font-size:13px}}
h1{{font-size:1.55rem;line-height:1.25;margin:0 0 18px;font-weight:650;overflow-wrap:anywhere}}
h2{{font-size:1.18rem;margin:0 0 4px;font-weight:650}}
h3{{font-size:.95rem;margin:14px 0 4px;font-weight:600;color:var(--soft)}}
section{{margin:44px 0 0}}
.lead{{margin:0 0 12px;color:var(--soft);max-width:46em}}
.cards{{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(230px,1fr))}}
.card{{background:var(--sheet);border:1px solid var(--hair);border-left:4px solid var(--edge);
border-radius:6px;padding:12px 16px;overflow-wrap:anywhere}}
.card h2{{font-size:1rem;display:flex;gap:8px;align-items:center;flex-wrap:wrap}}
.card p{{margin:2px 0;font-size:.9rem;color:var(--soft)}}
.card.good{{border-left-color:var(--good)}}.card.good strong{{color:var(--good)}}
.card.bad{{border-left-color:var(--bad)}}.card.bad strong{{color:var(--bad)}}
.card.open{{border-left-color:var(--open)}}.card.open strong{{color:var(--open)}}
.warnings{{margin:8px 0 0;padding:8px 10px 8px 26px;background:var(--mark);border-radius:4px;
font-size:.86rem}}
.key{{color:var(--c);font-weight:750}}
.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:0 0 12px;
font-size:.9rem}}
.legend li{{display:flex;gap:7px;align-items:center;overflow-wrap:anywhere}}
.swatch{{flex:none}}code,.whole{{white-space:nowrap}}
.charts{{display:grid;gap:18px;grid-template-columns:repeat(2,minmax(0,1fr))}}
.pair{{display:grid;gap:0 18px;grid-template-columns:repeat(2,minmax(0,1fr))}}
figure{{margin:0;background:var(--sheet);border:1px solid var(--hair);border-radius:6px;
padding:12px 12px 8px;min-width:0}}
figcaption{{font-weight:600;font-size:.95rem;margin:0 0 4px 4px;overflow-wrap:anywhere}}
.unit{{font-weight:400;color:var(--soft);font-size:.85rem;margin-left:4px}}
.none{{margin:0;grid-column:1/-1;padding:8px 14px;color:var(--soft);
border:1px dashed var(--edge);border-radius:6px}}
.chart{{display:block;width:100%;height:auto}}
.chart text{{font-size:13px;fill:var(--soft);font-variant-numeric:tabular-nums}}
.chart .name,.chart .note{{fill:var(--ink)}}
.chart .note,.chart .letter{{paint-order:stroke;stroke:var(--sheet);stroke-width:4px;
stroke-linejoin:round}}
.chart .up{{font-size:9.5px}}
.chart .letter{{font-weight:750;fill:var(--c);font-size:14px}}
.grid{{stroke:var(--hair);stroke-width:1;fill:none}}
.axis{{stroke:var(--edge);stroke-width:1.2;fill:none}}
.level{{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:1 4;stroke-linecap:round;fill:none}}
.bound{{stroke:var(--ink);stroke-width:3;fill:none}}
.l{{stroke:var(--c);stroke-width:2;fill:none;stroke-linejoin:round}}
.m{{stroke:var(--c);stroke-width:1.6;vector-effect:non-scaling-stroke}}
.m.full{{fill:var(--c);stroke:var(--sheet);stroke-width:1}}
.m.hollow{{fill:var(--sheet);fill-opacity:.55}}
.leader{{stroke:var(--c);stroke-width:.8;stroke-dasharray:1 3;fill:none}}
.bar{{stroke-width:1;stroke-opacity:.9}}
{
    "".join(
        f".b-{kind}{{stroke:var(--{kind})}}"
        for kind in (
            "solve",
            "wait",
            "certify",
            "write",
            "combine",
            "rest",
            "load",
            "k1",
            "k2",
            "k3",
            "k4",
        )
    )
}
.tabs>input{{position:absolute;opacity:0;pointer-events:none}}
.tabs>label{{display:inline-block;padding:5px 14px;margin:0 6px 14px 0;border:1px solid var(--edge);
border-radius:99px;cursor:pointer;font-size:.9rem}}
.tabs>input:checked+label{{background:var(--ink);color:var(--ground);border-color:var(--ink)}}
.tabs>input:focus-visible+label{{outline:3px solid var(--c0);outline-offset:2px}}
.panel{{display:none}}.panel>h3{{display:none}}
{_TABS}{{display:block}}
.scroll{{overflow-x:auto;border:1px solid var(--hair);border-radius:6px;background:var(--sheet)}}
.scroll:focus-visible{{outline:3px solid var(--c0)}}
table{{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums;min-width:100%}}
caption{{text-align:left;padding:9px 12px 4px;color:var(--soft);font-size:.85rem}}
th,td{{padding:5px 12px;text-align:right;white-space:nowrap;border-top:1px solid var(--hair)}}
thead th{{border-top:0;color:var(--soft);font-weight:600}}
tbody th,thead th:first-child{{text-align:left;font-weight:500}}
#settings td,#settings thead th,#sources tr>:nth-child(2){{text-align:left}}
tr.differs>*{{background:var(--mark);font-weight:650}}
details{{margin:12px 0 0}}summary{{cursor:pointer;padding:4px 0;overflow-wrap:anywhere}}
@media (max-width:700px){{
main{{padding:18px 14px 8px}}footer{{padding:8px 14px 28px}}
.charts,.pair{{grid-template-columns:minmax(0,1fr)}}.cards{{grid-template-columns:1fr}}
figure{{padding:10px 6px 6px}}section{{margin-top:34px}}
.chart text{{font-size:14.5px}}.chart .letter{{font-size:16px}}
}}
@media print{{
body{{font-size:11pt}}main,footer{{max-width:none;padding:0}}
.tabs>label{{display:none}}.panel{{display:block}}.panel>h3{{display:block}}
figure,.card,tr{{break-inside:avoid}}h2,h3,.lead{{break-after:avoid}}section{{margin-top:22px}}
.scroll{{overflow:visible;border:0}}table{{font-size:7.5pt}}th,td{{padding:2px 4px}}
details::details-content{{content-visibility:visible;block-size:auto}}
.bar,.m,.l,tr.differs>*,.warnings{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
}}
""".replace("\n", "")
