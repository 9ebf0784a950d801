"use strict";
(function () {
  var root = document.documentElement;
  function stored(value) {
    try {
      if (value !== undefined) localStorage.setItem("proteus-theme", value);
      return localStorage.getItem("proteus-theme");
    } catch (error) {
      return null;
    }
  }
  function dark() {
    var set = root.getAttribute("data-theme");
    return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  var saved = stored();
  if (saved === "dark" || saved === "light") root.setAttribute("data-theme", saved);
  var theme = document.getElementById("theme");
  if (theme) {
    var name = function () { theme.textContent = dark() ? "Light page" : "Dark page"; };
    theme.hidden = false;
    name();
    theme.addEventListener("click", function () {
      var next = dark() ? "light" : "dark";
      root.setAttribute("data-theme", next);
      stored(next);
      name();
    });
  }

  var tables = Array.prototype.slice.call(document.querySelectorAll("table.board"));
  // Narrow pages lay rows out as blocks, which takes their roles away.
  function roles(table) {
    table.setAttribute("role", "table");
    Array.prototype.forEach.call(table.tHead.rows, function (row) { row.setAttribute("role", "row"); });
    Array.prototype.forEach.call(table.tBodies, function (body) { body.setAttribute("role", "rowgroup"); });
    table.tHead.setAttribute("role", "rowgroup");
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (cell) { cell.setAttribute("role", "columnheader"); });
    Array.prototype.forEach.call(table.tBodies[0].rows, function (row) {
      row.setAttribute("role", "row");
      Array.prototype.forEach.call(row.cells, function (cell) { cell.setAttribute("role", "cell"); });
    });
  }
  var narrow = matchMedia("(max-width: 760px)");
  if (narrow.matches) tables.forEach(roles);
  narrow.addEventListener("change", function () { if (narrow.matches) tables.forEach(roles); });
  tables.forEach(function (table) {
    Array.prototype.forEach.call(table.querySelectorAll("th button"), function (button) {
      button.addEventListener("click", function () { sort(table, button.parentNode); });
    });
  });

  function key(row, column) {
    var cell = row.cells[column];
    var value = cell.getAttribute("data-v");
    if (value === null) return cell.textContent.trim().toLowerCase();
    return value === "" ? null : Number(value);
  }
  function sort(table, head) {
    var column = head.cellIndex;
    var first = head.getAttribute("data-first") || "ascending";
    var other = first === "ascending" ? "descending" : "ascending";
    var next = head.getAttribute("aria-sort") === first ? other : first;
    Array.prototype.forEach.call(head.parentNode.cells, function (cell) { cell.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", next);
    var sign = next === "ascending" ? 1 : -1;
    var rows = Array.prototype.map.call(table.tBodies[0].rows, function (row, at) { return [key(row, column), at, row]; });
    rows.sort(function (a, b) {
      if (a[0] === null || b[0] === null) return (a[0] === null) - (b[0] === null) || a[1] - b[1];
      return (a[0] < b[0] ? -sign : a[0] > b[0] ? sign : 0) || a[1] - b[1];
    });
    rows.forEach(function (entry) { table.tBodies[0].appendChild(entry[2]); });
  }

  var text = document.getElementById("filter");
  var suite = document.getElementById("suite");
  var ranked = document.getElementById("ranked");
  var count = document.getElementById("count");
  function filter() {
    var words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    var shown = 0;
    tables.forEach(function (table) {
      var section = table.closest("section");
      var here = !suite.value || section.getAttribute("data-suite") === suite.value;
      var rows = 0;
      Array.prototype.forEach.call(table.tBodies[0].rows, function (row) {
        var said = (row.cells[1].textContent + " " + row.cells[row.cells.length - 1].textContent).toLowerCase();
        var fits = words.every(function (word) { return said.indexOf(word) >= 0; });
        if (ranked.checked && row.classList.contains("unranked")) fits = false;
        row.hidden = !fits;
        rows += fits ? 1 : 0;
      });
      section.hidden = !here || (rows === 0 && (words.length > 0 || ranked.checked));
      shown += section.hidden ? 0 : rows;
    });
    count.textContent = shown + (shown === 1 ? " row" : " rows");
  }
  if (text) {
    document.getElementById("controls").hidden = false;
    [text, suite, ranked].forEach(function (input) { input.addEventListener("input", filter); });
    filter();
  }
  addEventListener("beforeprint", function () {
    Array.prototype.forEach.call(document.querySelectorAll("details"), function (part) { part.open = true; });
  });
})();
