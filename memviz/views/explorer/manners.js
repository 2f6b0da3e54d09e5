// JupyterLab takes letters and arrow keys for its own commands wherever no text is edited: on a drop-down list "m"
// would turn the cell into Markdown. And ipywidgets gives a slider's handle no name (ipywidgets#2650).
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
