// Light, dark, or as the system says; kept for other pages where the browser lets us.
const scheme = document.querySelector(".controls select"), KEY = "groupwise colours";
const setScheme = value => {
  if (value) document.documentElement.dataset.scheme = value;
  else delete document.documentElement.dataset.scheme;
};
scheme.addEventListener("input", () => {
  setScheme(scheme.value);
  try { localStorage.setItem(KEY, scheme.value); } catch { /* a page on a disk may have none */ }
});
try { scheme.value = localStorage.getItem(KEY) ?? ""; } catch { /* the system's */ }
if (scheme.selectedIndex < 0) scheme.value = "";
setScheme(scheme.value);
document.querySelector(".controls").hidden = false;
