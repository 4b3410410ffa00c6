
const SHOWN_IDS = 10;

/** Buttons for the likeliest ids at a place, each with a bar of its probability. */
class Bars {
  /**
   * @param {Vocabulary} vocabulary
   * @param {function(number)} onChoose is called with the id of the button that was pressed
   */
  constructor(vocabulary, onChoose) {
    this.vocabulary = vocabulary;
    this.rows = Array.from({ length: SHOWN_IDS }, () => {
      const item = document.createElement("li");
      const button = element("button", "choice");
      button.type = "button";
      const [name, word, bar, share] = ["name", "hidden", "bar", "percent"].map((part) => element("span", part));
      const track = element("span", "track");
      track.append(word, bar);
      button.append(name, track, share);
      button.addEventListener("click", () => onChoose(row.id));
      item.append(button);
      const row = { item, button, name, word, bar, share, id: -1 };
      return row;
    });
    find("likely").append(...this.rows.map(({ item }) => item));
    this.show([]);
  }

  /**
   * Show ids and their probabilities.
   * @param {[number, number][]} top at most 10 ids with their probabilities, the likeliest first
   * @param {number} actual the id that stands there in the text, if any
   */
  show(top, actual) {
    this.rows.forEach((row, i) => {
      row.item.hidden = i >= top.length;
      if (i >= top.length) return;
      const [id, p] = top[i];
      const name = this.vocabulary.names[id], isActual = id === actual;
      row.id = id;
      row.name.textContent = symbol(name) + (isActual ? " ✓" : "");
      row.name.setAttribute("aria-hidden", true);  // a screen reader says the word
      row.word.textContent = spoken(name) + (isActual ? ", in the text," : "");
      row.bar.style.width = `${100 * p}%`;
      row.share.textContent = percent(p);
      row.button.classList.toggle("actual", isActual);
    });
  }
}

/**
 * Return the likeliest ids after applying a temperature, as pairs [id, probability].
 * @param {Float32Array} probabilities those of the model, for each id
 * @param {number} temperature 0: the likeliest id has the probability 1
 * @param {?number} never the id that is not drawn
 */
function likeliestAt(probabilities, temperature, never) {
  const ids = Array.from(probabilities.keys()).filter((id) => id !== never && probabilities[id] > 0);
  ids.sort((a, b) => probabilities[b] - probabilities[a] || a - b);
  const most = Math.log(probabilities[ids[0]]);
  const weights = ids.map((id, i) => (temperature > 0
    ? Math.exp((Math.log(probabilities[id]) - most) / temperature) : Number(i === 0)));
  const total = weights.reduce((a, b) => a + b, 0);
  return ids.slice(0, SHOWN_IDS).map((id, i) => [id, weights[i] / total]);
}
