"use strict";

const { link, section, table } = halfwise;

section("kept", (root, { rows }) => {
  const columns = ["node", "operator", "in", "why", { title: "error without it, × limit", align: "right" }];
  table(root, { name: "Kept nodes", most: 15, columns, rows: rows.map(([node, ...rest]) => [
    { value: node, text: node, get node() { return link("graph", node); } }, ...rest,
  ]) });
});
