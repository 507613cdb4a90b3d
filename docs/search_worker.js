// A browser starts no worker from the disk. Search runs its worker's script in a hidden frame there instead.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...urls) =>
        Promise.all(
          urls.map(
            (each) =>
              new Promise((done) => {
                const added = inner.document.createElement("script");
                added.src = each;
                added.onload = done;
                inner.document.head.append(added);
              }),
          ),
        );
      const script = inner.document.createElement("script");
      script.src = url;
      this.post = (data) => inner.dispatchEvent(new MessageEvent("message", { data }));
      script.onload = () => {
        this.ready = true;
        waiting.forEach((data) => this.post(data));
      };
      this.postMessage = (data) => (this.ready ? this.post(data) : waiting.push(data));
      inner.document.head.append(script);
    }
  };
}
