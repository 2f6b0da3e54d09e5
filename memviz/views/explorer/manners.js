// JupyterLab takes letters and arrow keys for its own commands wherever no text is edited: on a drop-down list "m"
// would turn the cell into Markdown. And ipywidgets gives a slider's handle no name (ipywidgets#2650).
const dress = ({ target }) => {
  if (!target.matches('.memviz :is(select, button, [type=checkbox], .noUi-handle)')) return;
  target.setAttribute('data-lm-suppress-shortcuts', 'true');
  const slider = target.closest('.memviz-ranged') ?? target.closest('.widget-hslider');
  if (slider) target.setAttribute('aria-label', slider.querySelector('label').textContent);
};
// What is wrong is said at the knob that was moved last, and taken away when it is right again.
const complain = (panel, { wrong, text }) => {
  panel.querySelectorAll('.memviz-wrong-text').forEach((said) => said.remove());
  panel.querySelectorAll('.memviz-wrong').forEach((knob) => knob.classList.remove('memviz-wrong'));
  const knob = text && panel.querySelector(`.memviz-knob-${wrong}`);
  if (!knob) return;
  knob.classList.add('memviz-wrong');
  const said = document.createElement('div');
  said.className = 'memviz-wrong-text';
  said.textContent = text;
  (knob.closest('.memviz-ranged, .memviz-fields') ?? knob).after(said);
};
const copy = ({ target }) => {
  if (!target.closest('.memviz-copy')) return;
  const code = target.closest('.memviz').querySelector('.memviz-code textarea');
  code.select();
  navigator.clipboard?.writeText(code.value).catch(() => document.execCommand('copy'));
};
const render = ({ model, el }) => {
  let rest;
  const reach = ({ target, type }) => {
    clearTimeout(rest);
    const near = target.closest('.memviz-ranged')?.firstElementChild ?? target;
    const knob = near.closest('[class*=memviz-knob-]');
    if (!knob || !el.closest('.memviz')?.contains(knob)) return;
    const number = Number(knob.className.match(/memviz-knob-([0-9]+)/)[1]);
    const send = () => model.send({ knob: number });
    if (type === 'focusin') send();  // at once: the page may scroll to it, and another knob under the pointer
    else rest = setTimeout(send, 100);
  };
  const wrong = (message) => el.closest('.memviz') && complain(el.closest('.memviz'), message);
  model.on('msg:custom', wrong);
  const heard = [['focusin', dress], ['focusin', reach], ['pointerover', reach], ['click', copy]];
  heard.forEach(([type, act]) => document.addEventListener(type, act));
  return () => {
    model.off('msg:custom', wrong);
    heard.forEach(([type, act]) => document.removeEventListener(type, act));
  };
};
export default { render };
