
const PARTS = new Set(["token", "scores"]);  // answers that are not the last one to their request

/** The worker that runs the model. The protocol is at the head of worker.js. */
class ModelClient {
  /** @param {string} source the script of the worker */
  constructor(source) {
    const script = new Blob([source], { type: "text/javascript" });
    this.worker = new Worker(URL.createObjectURL(script));  // a page on a disk can start a worker only from a blob
    this.requests = new Map();
    this.lastId = 0;
    this.worker.onmessage = ({ data }) => this.receive(data);
    this.worker.onerror = (event) => {
      for (const id of [...this.requests.keys()]) this.receive({ id, op: "error", message: event.message });
    };
  }

  /**
   * Send a request.
   * @param {object} message the request, without its id
   * @param {function(object)} onPart is called with each answer but the last
   * @returns {{id: number, finished: Promise<object>}} finished: resolves to the last answer
   */
  start(message, onPart = () => {}) {
    const id = ++this.lastId;
    const finished = new Promise((resolve, reject) => this.requests.set(id, { onPart, resolve, reject }));
    this.worker.postMessage({ ...message, id });
    return { id, finished };
  }

  /** Send a request that has one answer; return a promise of it. */
  ask(message) {
    return this.start(message).finished;
  }

  receive(answer) {
    const request = this.requests.get(answer.id);
    if (!request) return;
    if (PARTS.has(answer.op)) return request.onPart(answer);
    this.requests.delete(answer.id);
    if (answer.op === "error") request.reject(new Error(answer.message));
    else request.resolve(answer);
  }

  /** End a running request: it finishes with the reason "stopped". */
  stop(id) {
    this.worker.postMessage({ op: "stop", id });
  }
}

/** Return a function that runs `update`. Calls during a run are joined: `update` runs once more after it. */
function joined(update) {
  let isRunning = false, again = false;
  return async () => {
    again = true;
    if (isRunning) return;
    isRunning = true;
    try {
      while (again) {
        again = false;
        await update();
      }
    } finally {
      isRunning = false;
    }
  };
}
