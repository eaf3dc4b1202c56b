"""The style of a report's page: readable on a phone, light or dark as the reader has it. Plots have their own sizes."""

STYLE = """
:root { color-scheme: light dark; --back: #fbfbf9; --card: #fff; --ink: #1d1f21; --soft: #5c6166; --rule: #e2e2dc;
  --ours: #1769aa; --theirs: #c2570c; --other: #7a5aa6; }
@media (prefers-color-scheme: dark) { :root { --back: #14171a; --card: #1c2024; --ink: #e8e9ea; --soft: #a3a9af;
  --rule: #343a40; --ours: #62b0ec; --theirs: #f29a55; --other: #b99be6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.25rem 1rem 3rem; background: var(--back); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.05rem; margin: 0 0 .5rem; }
p { margin: .25rem 0; overflow-wrap: anywhere; }
.soft, figcaption { color: var(--soft); font-size: .875rem; }
.warning { border-inline-start: .25rem solid var(--theirs); padding-inline-start: .75rem; margin-block: .75rem; }
main { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr));
  margin-top: 1.25rem; align-items: start; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: .5rem; padding: 1rem; min-width: 0; }
section.wide { grid-column: 1 / -1; }
figure { margin: 0; }
svg { display: block; width: 100%; max-width: 36rem; height: auto; font-size: 11.5px; fill: var(--ink); }
.label { fill: var(--soft); }
.bar.ours, .dot.ours { fill: var(--ours); } .bar.theirs, .dot.theirs { fill: var(--theirs); }
.bar.other, .dot.other { fill: var(--other); }
.line { fill: none; stroke-width: 2; } .line.dashed { stroke-dasharray: 5 4; }
.line.ours { stroke: var(--ours); } .line.theirs { stroke: var(--theirs); } .line.other { stroke: var(--other); }
.whisker { stroke: var(--ink); fill: none; opacity: .55; } .grid { stroke: var(--rule); }
.mark { stroke: var(--ink); stroke-dasharray: 3 3; opacity: .7; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; font-size: .875rem; color: var(--soft); }
.legend i { display: inline-block; width: .75em; height: .75em; border-radius: .15em; margin-inline-end: .4em; }
i.ours { background: var(--ours); } i.theirs { background: var(--theirs); } i.other { background: var(--other); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8125rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .25rem .4rem; text-align: end; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: start; padding-inline-start: 0; }
th:last-child, td:last-child { padding-inline-end: 0; }
""".strip()
