// The page is complete without this: it adds a button to each table.
"use strict";
for (const frame of document.querySelectorAll("div.table")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "copy as CSV";
  const told = text => {
    button.textContent = text;
    setTimeout(() => { button.textContent = "copy as CSV"; }, 1500);
  };
  button.addEventListener("click", () => {
    const field = cell => '"' + cell.textContent.replaceAll('"', '""') + '"';
    const rows = [...frame.querySelectorAll("tr")];
    const csv = rows.map(row => [...row.cells].map(field).join(",")).join("\n") + "\n";
    const byHand = () => {
      const area = document.createElement("textarea");
      area.value = csv;
      frame.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      told(done ? "copied" : "the browser forbids it");
    };
    // A page from the file system may have no clipboard.
    if (navigator.clipboard) {
      navigator.clipboard.writeText(csv).then(() => told("copied"), byHand);
    } else {
      byHand();
    }
  });
  frame.append(button);
}
