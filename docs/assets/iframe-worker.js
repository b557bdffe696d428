// The search works in a Worker, and browsers allow none to a page opened from a disk. There its
// script runs in a hidden frame instead, with the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<!doctype html>"
      this.inside = new Promise((resolve, onerror) => {
        frame.onload = () => {
          const inside = frame.contentWindow
          inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          const onload = () => resolve(inside)
          inside.document.head.append(Object.assign(script, { src: url, onload, onerror }))
        }
      })
      document.body.append(frame)
    }

    postMessage(data) {
      this.inside.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
