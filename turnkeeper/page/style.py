"""How a run's page looks: on a wide screen and a phone, light and dark, on paper. Pure."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fbfbfa; --card: #ffffff; --ink: #22262b; --soft: #646c76; --line: #e2e4e7;
  --code: #f3f4f5; --link: #2b5f96; --ok: #26734d; --warn: #8a5a00; --bad: #b0352b;
  --wait: #2b5f96; --ok-bg: #e5f3ea; --warn-bg: #fbf0d9; --bad-bg: #fbe9e7; --wait-bg: #e4eefa;
  --in: #4f83b5; --cached: #b4cde4; --out: #6b8f71; --cost: #a3677f;
  --model: #7d6fb0; --tools: #c9a25c;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181b; --card: #1d2024; --ink: #dfe2e6; --soft: #9aa2ac; --line: #32373d;
    --code: #25292e; --link: #85b4e3; --ok: #7cc79b; --warn: #dcb265; --bad: #ec8f86;
    --wait: #85b4e3; --ok-bg: #1d3428; --warn-bg: #39301c; --bad-bg: #3d2422; --wait-bg: #1e2f42;
    --in: #5f94c8; --cached: #34506b; --out: #7fa886; --cost: #c08aa2;
    --model: #9488c8; --tools: #b8924e;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 var(--sans); overflow-wrap: anywhere;
}
main { max-width: 54rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1, h2, p, dl, dd, pre, figure { margin: 0; }
h1 { font: 600 1.6rem/1.25 var(--sans); letter-spacing: -0.01em; }
h2 { font: 600 1.05rem/1.4 var(--sans); }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
small, .fine, .note, time { color: var(--soft); font-size: 0.8125rem; }
main > section { margin-top: 2.25rem; }
main > section > h2 { margin-bottom: 0.75rem; }

.kicker { color: var(--soft); font-size: 0.8125rem; }
.outcome { margin-top: 0.6rem; }
.reason { margin-top: 0.5rem; color: var(--soft); unicode-bidi: isolate; }
.lacks, .cut { margin-top: 0.75rem; color: var(--warn); font-size: 0.875rem; }
.chip {
  display: inline-block; padding: 0.05em 0.6em; border-radius: 1em; font-size: 0.8125rem;
  font-weight: 600; white-space: nowrap; max-width: 100%; overflow: hidden;
  text-overflow: ellipsis; vertical-align: bottom;
}
.outcome .chip { font-size: 0.9375rem; }
.chip.ok { color: var(--ok); background: var(--ok-bg); }
.chip.warn { color: var(--warn); background: var(--warn-bg); }
.chip.bad { color: var(--bad); background: var(--bad-bg); }
.chip.wait { color: var(--wait); background: var(--wait-bg); }

.facts {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr));
  gap: 0.9rem 1.5rem; margin-top: 1.25rem; padding-top: 1.25rem; border-top: 1px solid var(--line);
}
.facts dt { color: var(--soft); font-size: 0.8125rem; }
.facts dd { font-variant-numeric: tabular-nums; unicode-bidi: isolate; }
.facts small { display: block; }

.waiting { padding: 1rem; border-radius: 8px; background: var(--wait-bg); }
.waiting p { margin-top: 0.4rem; }
.waiting pre { margin-top: 0.4rem; background: var(--card); }

.limit {
  display: grid; grid-template-columns: 4.5rem 1fr minmax(9rem, auto); gap: 0.75rem;
  align-items: center; margin-top: 0.35rem; font-size: 0.875rem;
}
.limit svg { width: 100%; height: 8px; border-radius: 4px; background: var(--line); }
.limit .told { color: var(--soft); font-variant-numeric: tabular-nums; }
.used { fill: var(--in); } .near { fill: var(--tools); } .full { fill: var(--bad); }

.chart svg { display: block; width: 100%; overflow: hidden; }
.bars { height: 56px; border-bottom: 1px solid var(--line); }
.flags { height: 6px; margin-top: 3px; }
.panel + .panel { margin-top: 0.9rem; }
.legend, .axis {
  display: flex; flex-wrap: wrap; gap: 0 1rem; font-size: 0.8125rem; color: var(--soft);
  font-variant-numeric: tabular-nums;
}
.legend { margin-bottom: 0.25rem; }
.legend b { color: var(--ink); font-weight: 600; }
.legend .most { margin-left: auto; }
.axis { justify-content: space-between; margin-top: 0.15rem; }
.key {
  display: inline-block; width: 0.7em; height: 0.7em; border-radius: 2px; margin-right: 0.4em;
}
.key.in { background: var(--in); } .key.cached { background: var(--cached); }
.key.cost { background: var(--cost); } .key.out { background: var(--out); }
.key.model { background: var(--model); }
.key.ok { background: var(--ok); } .key.bad { background: var(--bad); }
.key.tools, .key.warn { background: var(--tools); }
rect.in { fill: var(--in); } rect.cached { fill: var(--cached); } rect.out { fill: var(--out); }
rect.cost { fill: var(--cost); }
rect.model { fill: var(--model); } rect.tools { fill: var(--tools); }
rect.bad { fill: var(--bad); } rect.warn { fill: var(--tools); }
rect.gap { fill: var(--paper); } rect.hit { fill: transparent; }
a:hover rect.hit { fill: var(--line); }

nav { margin-top: 1.5rem; font-size: 0.875rem; }
nav p { margin-top: 0.25rem; }
nav b { font-weight: 600; margin-right: 0.25rem; }
nav a { margin-right: 0.35rem; white-space: nowrap; }

.turn { margin-top: 1.75rem; scroll-margin-top: 0.5rem; }
.turn > header {
  display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 1rem; padding-bottom: 0.3rem;
  border-bottom: 1px solid var(--line);
}
.turn > header h2 { font-size: 0.9375rem; }
.turn > header a { color: inherit; }
.turn > header p {
  display: flex; flex-wrap: wrap; gap: 0 0.9rem; margin-left: auto; color: var(--soft);
  font-size: 0.8125rem; font-variant-numeric: tabular-nums;
}
.turn:target > header { border-color: var(--link); }
.said, .call, .prose, .mark, .marked, .reply > details { margin-top: 0.75rem; }
.prose { white-space: pre-wrap; overflow: hidden; unicode-bidi: plaintext; }
.said {
  padding: 0.6rem 0.9rem; border-radius: 8px; background: var(--wait-bg); overflow: hidden;
}
.said .prose { margin-top: 0.15rem; }
.who { font-size: 0.8125rem; color: var(--soft); }
.who b { color: var(--ink); }
.who time { margin-left: 0.75rem; }
.mark { color: var(--soft); font-size: 0.875rem; unicode-bidi: isolate; }
.mark.bad { color: var(--bad); }
.mark time { margin-left: 0.6rem; }

.call {
  border: 1px solid var(--line); border-left: 3px solid var(--line); border-radius: 8px;
  background: var(--card); padding: 0.6rem 0.9rem; overflow: hidden;
}
.call.bad { border-left-color: var(--bad); }
.call.warn { border-left-color: var(--warn); }
.call.wait { border-left-color: var(--wait); }
.head { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0.1rem 0.6rem; }
.head .name { font: 600 0.9375rem/1.5 var(--mono); unicode-bidi: isolate; }
.effect, .took { color: var(--soft); font-size: 0.8125rem; }
.took {
  display: inline-flex; gap: 0.9rem; margin-left: auto;
  font-variant-numeric: tabular-nums;
}
.arguments {
  display: grid; grid-template-columns: fit-content(30%) minmax(0, 1fr); gap: 0.15rem 0.9rem;
  margin-top: 0.35rem; font-size: 0.8125rem;
}
.arguments dt { font-family: var(--mono); color: var(--soft); unicode-bidi: isolate; }
.arguments pre { padding: 0; background: none; font-size: inherit; line-height: 1.5; }
.person {
  margin-top: 0.5rem; padding: 0.35rem 0.6rem; border-radius: 6px; background: var(--warn-bg);
  font-size: 0.875rem; unicode-bidi: isolate;
}
.result { margin-top: 0.5rem; padding-top: 0.5rem; border-top: 1px dashed var(--line); }
.note { margin-top: 0.35rem; }
.fine { margin-top: 0.5rem; font-size: 0.75rem; display: flex; flex-wrap: wrap; gap: 0 0.9rem; }

pre {
  font: 0.8125rem/1.5 var(--mono); background: var(--code); border-radius: 6px;
  padding: 0.5rem 0.7rem; overflow-x: auto; overflow-y: hidden; overflow-wrap: normal;
  tab-size: 4; unicode-bidi: plaintext;
}
pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; }
.call.bad .result > pre, .call.bad .result > details > pre { background: var(--bad-bg); }
summary { cursor: pointer; color: var(--soft); font-size: 0.875rem; unicode-bidi: isolate; }
summary span { color: var(--ink); }
details[open] > summary { margin-bottom: 0.35rem; }
.arguments summary { font-size: inherit; font-family: var(--mono); }
figure { margin-top: 0.5rem; }
img {
  display: block; max-width: 100%; height: auto; max-height: 28rem; width: auto;
  border: 1px solid var(--line); border-radius: 6px; background: #fff;
}
figcaption { color: var(--soft); font-size: 0.75rem; margin-top: 0.25rem; }

footer {
  margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); color: var(--soft);
  font-size: 0.8125rem;
}
footer dl { display: grid; grid-template-columns: fit-content(40%) minmax(0, 1fr); gap: 0 1rem; }
footer details { margin-bottom: 0.75rem; }
footer dd { color: var(--ink); }

@media (max-width: 34rem) {
  body { font-size: 15px; }
  main { padding: 1.25rem 0.9rem 3rem; }
  h1 { font-size: 1.3rem; }
  .facts { grid-template-columns: 1fr 1fr; gap: 0.75rem 1rem; }
  .limit { grid-template-columns: 4rem 1fr; gap: 0 0.75rem; margin-top: 0.5rem; }
  .limit .told { grid-column: 2; }
  .turn > header p { margin-left: 0; }
  .legend .most { margin-left: 0; }
  .took { margin-left: 0; }
  .call, .said { padding: 0.5rem 0.7rem; }
}
@media print {
  :root { color-scheme: light; --paper: #fff; --card: #fff; }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  .call, .said, figure, .panel { break-inside: avoid-page; }
  .turn > header { break-after: avoid; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
  rect, .key, .chip, .said, .person, svg, pre {
    print-color-adjust: exact; -webkit-print-color-adjust: exact;
  }
}
"""
