"use strict";
const tip = document.getElementById("tip");

for (const data of document.querySelectorAll("script.points")) {
  const section = data.closest("section");
  const chart = section.querySelector("svg.curves");
  const points = JSON.parse(data.textContent);
  const ring = chart.querySelector(".ring");
  const histogram = section.querySelector("svg.histogram");
  const bars = histogram.querySelectorAll(".bar");
  const chosen = section.querySelector(".chosen");
  const top = Number(histogram.dataset.top), bottom = Number(histogram.dataset.bottom);
  const hidden = new Set();

  const show = (point) => {
    ring.removeAttribute("hidden");
    ring.setAttribute("cx", point.at[0]);
    ring.setAttribute("cy", point.at[1]);
    chosen.textContent = point.policy;
    bars.forEach((bar, exit) => {
      const height = (bottom - top) * point.exits[exit] / 100;
      bar.setAttribute("y", bottom - height);
      bar.setAttribute("height", height);
      bar.setAttribute("fill", point.color);
    });
  };

  const nearest = (event) => {
    const box = chart.getBoundingClientRect();
    const scale = chart.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale;
    const y = (event.clientY - box.top) * scale;
    let best = null, least = 60 * 60;
    for (const point of points) {
      if (hidden.has(point.series)) continue;
      const distance = (point.at[0] - x) ** 2 + (point.at[1] - y) ** 2;
      if (distance < least) { best = point; least = distance; }
    }
    return best;
  };

  chart.addEventListener("pointermove", (event) => {
    const point = nearest(event);
    tip.hidden = point === null;
    if (point === null) return;
    show(point);
    tip.textContent = [point.policy, ...point.lines].join("\n");
    const left = Math.min(event.clientX + 16, window.innerWidth - tip.offsetWidth - 8);
    const above = event.clientY + 16 + tip.offsetHeight > window.innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${above ? event.clientY - tip.offsetHeight - 12 : event.clientY + 16}px`;
  });
  chart.addEventListener("pointerleave", () => { tip.hidden = true; });

  for (const box of section.querySelectorAll("input[data-series]")) {
    box.addEventListener("change", () => {
      const series = Number(box.dataset.series);
      box.checked ? hidden.delete(series) : hidden.add(series);
      chart.querySelector(`[data-series="${series}"]`).style.display = box.checked ? "" : "none";
    });
  }

  const first = points.filter((point) => point.series === points[0].series);
  show(first[Math.floor(first.length / 2)]);
}
