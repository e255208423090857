"""How the page looks."""

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1f2328; --faint: #59636e; --rule: #d5dadf; --tint: #f6f8fa;
        --good: #006d4e; --bad: #b3441c; --open: #6b5300; --link: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #0d1117; --ink: #e6edf3; --faint: #9198a1; --rule: #39414c; --tint: #161b22;
          --good: #35c795; --bad: #f0894e; --open: #e3c34a; --link: #56b4e9; } }
* { box-sizing: border-box; }
body { background: var(--ground); color: var(--ink); font: 16px/1.55 system-ui, sans-serif;
       max-width: 1080px; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 0.75rem; }
h2 { font-size: 1.45rem; line-height: 1.25; margin: 0; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 0; }
section { margin-top: 3.5rem; padding-top: 1.5rem; border-top: 1px solid var(--rule); }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
code { font: 0.88em ui-monospace, monospace; background: var(--tint); padding: 0.1em 0.35em; border-radius: 4px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.5rem 1.25rem; margin: 1.25rem 0; }
dt { font-weight: 600; }
dd { margin: 0; }
.faint { color: var(--faint); }
.wide { overflow-x: auto; margin: 1.25rem 0 0.5rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; line-height: 1.4; }
.caption { font-weight: 600; margin: 1.25rem 0 0; }
.caption + .wide { margin-top: 0.4rem; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 1.1rem 0.35rem 0;
         border-bottom: 1px solid var(--rule); }
th { font-weight: 500; color: var(--faint); vertical-align: bottom; }
th:last-child, td:last-child { padding-right: 0; }
.numbers { font-variant-numeric: tabular-nums; }
.numbers th:not(:first-child), .numbers td:not(:first-child) { text-align: right; }
.numbers td:not(:first-child) { white-space: nowrap; }
.words { font-size: 0.85rem; }
.words td:nth-child(4) { min-width: 13rem; }
.words td:nth-child(6), td code { white-space: nowrap; }
.overview td { padding-top: 0.6rem; padding-bottom: 0.6rem; }
.overview td:first-child { min-width: 15rem; }
.strong { font-weight: 700; }
.note { color: var(--faint); font-size: 0.88rem; line-height: 1.45; }
ul.note { margin: 0.25rem 0 1.5rem; padding-left: 1.1rem; }
figure { margin: 1.75rem 0; }
img { display: block; max-width: 100%; height: auto; }
figcaption { color: var(--faint); font-size: 0.88rem; margin-top: 0.35rem; }
details { margin: 1rem 0; }
summary { cursor: pointer; font-weight: 600; }
nav { margin-top: 1rem; }
footer { margin: 4rem 0 1rem; color: var(--faint); font-size: 0.88rem; }
.verdict { display: inline-block; white-space: nowrap; font-size: 0.85rem; font-weight: 600; padding: 0 0.55em;
           border: 1px solid currentColor; border-radius: 1em; color: var(--faint); }
.holds, .aim-met { color: var(--good); }
.does-not-hold, .aim-missed { color: var(--bad); }
.not-decided { color: var(--open); }
@media (max-width: 640px) {
  dl { grid-template-columns: 1fr; gap: 0.2rem; }
  dd { margin-bottom: 0.75rem; }
  img { min-width: 640px; }
  .overview td { display: block; border: 0; padding: 0.15rem 0; }
  .overview tr { display: block; padding: 0.6rem 0; border-bottom: 1px solid var(--rule); } }
@media print { details { display: block; } body { max-width: none; } }
"""
