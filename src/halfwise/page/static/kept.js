"use strict";

const { link, section, table } = halfwise;

section("kept", (root, { rows }) => {
  const columns = ["node", { title: "operator", minor: true }, "in", "why", { title: "error without it, × limit", align: "right" }];
  table(root, { name: "Kept nodes", most: 15, columns, rows: rows.map(([node, ...rest]) => [
    { text: node, node: () => link("graph", node) }, ...rest,
  ]) });
});
