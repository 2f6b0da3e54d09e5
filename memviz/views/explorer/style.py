"""The panel's looks, and what its controls need to be used by keyboard inside JupyterLab."""

from __future__ import annotations

import anywidget

_CSS = """
.memviz { font-size: 13px; color: var(--jp-ui-font-color1, #1f2328); }
.memviz p { margin: 0; line-height: 1.4; }
.memviz-top { align-items: flex-start; gap: 14px; flex-wrap: nowrap; }
.memviz-knobs { flex: 0 0 304px; gap: 1px; overflow: visible; }
.memviz-knobs .widget-inline-hbox { margin: 1px 0; }
.memviz-right { flex: 1 1 auto; gap: 8px; min-width: 700px; overflow: visible; }
.memviz-heading { font-weight: 600; line-height: 20px; margin-top: 7px; border-bottom: 1px solid #d0d7de; }
.memviz-fields { gap: 6px; width: 296px; align-items: flex-end; }
.memviz-field.widget-inline-hbox { flex-direction: column; align-items: stretch; flex: 1 1 0; width: auto; height: auto;
  min-width: 0; }
.memviz-field.widget-inline-hbox > .widget-label { width: auto; line-height: 16px; height: 16px; text-align: left;
  font-size: 12px; }
.memviz-field input[type=number], .memviz-field select { min-width: 0; width: 100%; flex: 0 0 28px; }
.memviz-verdict { font-size: 15px; padding: 8px 12px; border-left: 5px solid #8c959f; background: #f6f8fa;
  color: #1f2328; }
.memviz-verdict.memviz-lacks { border-color: #b22222; background: #fdf1f0; }
.memviz-verdict.memviz-fits { border-color: #1a7f37; background: #effaf1; }
.memviz-alert { padding: 8px 12px; border: 1px solid #b22222; border-left-width: 5px; background: #fff;
  color: #8b1a1a; }
.memviz-note { color: #57606a; font-size: 12px; }
.memviz-display { gap: 18px; flex-wrap: wrap; }
.memviz-display .widget-label, .memviz-controls .widget-label { width: auto !important; margin-right: 6px; }
.memviz-display .widget-toggle-buttons { display: flex; width: auto; align-items: center; }
.memviz-controls { gap: 10px; align-items: center; width: 696px; overflow: hidden; }
.memviz-controls .widget-hprogress { flex: 1 1 0; min-width: 0; }
.memviz-controls .widget-text { width: 120px; }
.memviz > .widget-html, .memviz > .widget-html > .widget-html-content { width: 100%; min-width: 0; margin: 0; }
.memviz-wide { overflow-x: auto; margin-top: 10px; }
.memviz-table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 12px; line-height: 1.5; }
.memviz-table th, .memviz-table td { padding: 2px 6px; text-align: left; white-space: nowrap; border: 0; }
.memviz-table thead th { white-space: normal; }
.memviz-stale { opacity: .6; }
.memviz-table thead th { border-bottom: 1px solid #8c959f; font-weight: 600; vertical-align: bottom; }
.memviz-table tfoot td { border-top: 1px solid #8c959f; font-weight: 600; }
.memviz-table tbody tr:nth-child(even) { background: rgba(127, 127, 127, .08); }
.memviz-table .memviz-number { text-align: right; }
"""

# JupyterLab takes letters and arrow keys for its own commands wherever no text is edited: on a focused drop-down list
# "m" would turn the cell into Markdown. And ipywidgets gives a slider's handle no name (ipywidgets#2650).
_ESM = """
export default { render({ el }) {
  const dress = () => {
    const panel = el.closest('.memviz');
    if (!panel) return setTimeout(dress, 50);
    panel.addEventListener('focusin', ({ target }) => {
      if (!target.matches('select, button, [type=checkbox], .noUi-handle')) return;
      target.setAttribute('data-lm-suppress-shortcuts', 'true');
      const slider = target.closest('.widget-hslider');
      if (slider) target.setAttribute('aria-label', slider.querySelector('label').textContent);
    });
  };
  dress();
} };
"""


class Manners(anywidget.AnyWidget):
    """An invisible part of the panel that brings its style sheet and its manners at the keyboard."""

    _esm = _ESM
    _css = _CSS
