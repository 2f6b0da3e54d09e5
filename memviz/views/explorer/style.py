"""The panel's looks, and what its controls need to be used by keyboard inside JupyterLab."""

from __future__ import annotations

from collections.abc import Callable

import anywidget


class Manners(anywidget.AnyWidget):
    """An invisible part of the panel that brings its style sheet and its manners at the keyboard.

    reached is called with the number of a knob on which the pointer rests or that takes the focus.
    """

    def __init__(self, reached: Callable[[int], None]) -> None:
        super().__init__()
        self.on_msg(lambda _, content, __: reached(content["knob"]))

    # JupyterLab takes letters and arrow keys for its own commands wherever no text is edited: on a drop-down list "m"
    # would turn the cell into Markdown. And ipywidgets gives a slider's handle no name (ipywidgets#2650).
    _esm = """
const dress = ({ target }) => {
  if (!target.matches('.memviz :is(select, button, [type=checkbox], .noUi-handle)')) return;
  target.setAttribute('data-lm-suppress-shortcuts', 'true');
  const slider = target.closest('.widget-hslider');
  if (slider) target.setAttribute('aria-label', slider.querySelector('label').textContent);
};
const render = ({ model, el }) => {
  let rest;
  const reach = ({ target, type }) => {
    clearTimeout(rest);
    const knob = target.closest('[class*=memviz-knob-]');
    if (!knob || !el.closest('.memviz')?.contains(knob)) return;
    const number = Number(knob.className.match(/memviz-knob-([0-9]+)/)[1]);
    rest = setTimeout(() => model.send({ knob: number }), type === 'focusin' ? 0 : 100);
  };
  const heard = [['focusin', dress], ['focusin', reach], ['pointerover', reach]];
  heard.forEach(([type, act]) => document.addEventListener(type, act));
  return () => heard.forEach(([type, act]) => document.removeEventListener(type, act));
};
export default { render };
"""
    _css = """
.memviz p { margin: 0; line-height: 1.4; }
.memviz .widget-html:has(> .widget-html-content:empty) { display: none; }
.memviz-top { align-items: flex-start; gap: 14px; }
.memviz-knobs { flex: 0 0 304px; gap: 1px; overflow: visible; }
.memviz-knobs .widget-inline-hbox { width: 296px; margin: 1px 0; }
.memviz-knobs .widget-label { width: 92px; }
.memviz-right { flex: 1 1 auto; gap: 8px; min-width: 700px; overflow: visible; }
.memviz-heading { font-weight: 600; line-height: 20px; margin-top: 7px; border-bottom: 1px solid #d0d7de; }
.memviz-fields { gap: 6px; width: 296px; align-items: flex-end; }
.memviz-fields .widget-inline-hbox { flex: 1; flex-direction: column; align-items: stretch; height: auto; min-width: 0 }
.memviz-fields .widget-label { width: auto; height: 16px; line-height: 16px; text-align: left; font-size: 12px; }
.memviz-fields :is(input[type=number], select) { flex: 0 0 28px; min-width: 0; width: 100%; }
.memviz-verdict, .memviz-alert { padding: 8px 12px; border-left: 5px solid #8c959f; background: #f6f8fa; }
.memviz-verdict { font-size: 15px; color: #1f2328; }
.memviz-lacks, .memviz-alert { border-color: #b22222; background: #fdf1f0; }
.memviz-fits { border-color: #1a7f37; background: #effaf1; }
.memviz-alert { color: #8b1a1a; outline: 1px solid #b22222; }
.memviz-note { color: #57606a; font-size: 12px; }
.memviz-stale { opacity: .6; }
.memviz-display { gap: 18px; flex-wrap: wrap; }
.memviz-display .widget-toggle-buttons { display: flex; width: auto; align-items: center; }
.memviz-display .widget-toggle-button { width: auto; }
.memviz-controls { gap: 10px; align-items: center; width: 696px; overflow: hidden; }
.memviz-controls .widget-hprogress { flex: 1 1 0; min-width: 0; }
.memviz-controls .widget-text { width: 120px; }
:is(.memviz-display, .memviz-controls) .widget-label { width: auto; margin-right: 6px; }
.memviz-wide { overflow-x: auto; margin-top: 10px; }
.memviz-table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 12px; line-height: 1.5; }
.memviz-table :is(th, td) { padding: 2px 6px; text-align: right; white-space: nowrap; font-weight: normal; border: 0; }
.memviz-table th:first-child { text-align: left; }
.memviz-table tbody tr:nth-child(even) { background: rgba(127, 127, 127, .08); }
.memviz-table thead th { white-space: normal; vertical-align: bottom; }
.memviz-table thead th, .memviz-sums tbody tr:last-child > * { font-weight: 600; }
.memviz-table thead, .memviz-sums tbody tr:last-child { border-block: 1px solid #8c959f; }
"""
