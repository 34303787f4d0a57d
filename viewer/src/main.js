import { render } from "preact";
import { App } from "./app.js";
import { startKeyboard } from "./keyboard.js";
import { openSource } from "./source.js";
import { initialTheme } from "./state.js";
import "uplot/dist/uPlot.min.css";
import "./style.css";

initialTheme();
startKeyboard();
const root = document.getElementById("app");
openSource().then(
  () => render(<App />, root),
  (problem) => render(<App problem={problem} />, root), // the data in this file does not unpack
);
