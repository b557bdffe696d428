// By kind of element, the smallest contrast (WCAG 2.1) of its text with what lies behind it.
(() => {
  const often = {willReadFrequently: true};
  const canvas = document.createElement('canvas').getContext('2d', often);
  const luminance = layers => {
    for (const layer of layers) {
      canvas.fillStyle = layer;
      canvas.fillRect(0, 0, 1, 1);
    }
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)].map(value =>
      (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const out = {};
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || !element.checkVisibility() || element.closest('script')) continue;
    const behind = [];
    for (let e = element; e; e = e.parentElement)
      behind.unshift(getComputedStyle(e).backgroundColor);
    const a = luminance([...behind]);
    const b = luminance([...behind, getComputedStyle(element).color]);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const key = `${element.tagName}.${element.className}`;
    out[key] = Math.min(out[key] ?? 99, ratio);
  }
  return out;
})()
