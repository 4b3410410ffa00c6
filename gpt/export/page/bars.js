
/** Buttons for the likeliest ids at a place, each with a bar of its probability. */
class Bars {
  /**
   * @param {Vocabulary} vocabulary
   * @param {function(number)} onChoose is called with the id of the button that was pressed
   */
  constructor(vocabulary, onChoose) {
    this.vocabulary = vocabulary;
    this.rows = Array.from({ length: LIKELIEST }, () => {
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
   * @param {[number, number][]} top from `likeliest`: ids with their probabilities, the likeliest first
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
      row.name.setAttribute("aria-hidden", true);  // a screen reader reads `row.word` instead
      row.word.textContent = spoken(name) + (isActual ? ", in the text," : "");
      row.bar.style.width = `${100 * p}%`;
      row.share.textContent = percent(p);
      row.button.classList.toggle("actual", isActual);
    });
  }
}
