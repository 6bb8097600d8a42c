//! A matrix with a number in each cell, shaded by its share.

use std::fmt::Write;

use super::escaped;

/// One number.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixCell {
    pub text: String,
    /// From 0 to 1: how dark the cell is.
    pub shade: f64,
    /// Whether the cell has a frame.
    pub framed: bool,
    /// Whether the number needs attention.
    pub marked: bool,
}

/// Rows and columns with names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HtmlMatrix {
    /// What rows and columns are, such as `from \ to`.
    pub corner: String,
    pub columns: Vec<String>,
    pub rows: Vec<(String, Vec<MatrixCell>)>,
}

/// Steps of shade in the style.
const STEPS: f64 = 10.0;

impl HtmlMatrix {
    pub fn html(&self) -> String {
        let mut html = format!("<table class=\"matrix\"><thead><tr><th>{}</th>", escaped(&self.corner));
        self.columns.iter().for_each(|name| {
            let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(name));
        });
        html += "</tr></thead><tbody>\n";
        for (name, cells) in &self.rows {
            let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escaped(name));
            for cell in cells {
                let step = (cell.shade.clamp(0.0, 1.0) * STEPS).ceil();
                let own = if cell.framed { " own" } else { "" };
                let off = if cell.marked { " off" } else { "" };
                let _ = write!(html, "<td class=\"s{step:.0}{own}{off}\">{}</td>", escaped(&cell.text));
            }
            html += "</tr>\n";
        }
        html + "</tbody></table>"
    }
}

/// Traffic from the zones at the left to the zones at the top, as percent of all; traffic within a zone is framed.
pub fn zone_matrix(zones: &[&str], share: impl Fn(&str, &str) -> f64) -> HtmlMatrix {
    let cell = |from: &str, to: &str| {
        let share = share(from, to);
        let text = if share > 0.0 { format!("{:.1}", 100.0 * share) } else { "0".to_owned() };
        MatrixCell { text, shade: share, framed: from == to, marked: false }
    };
    let row = |from: &&str| ((*from).to_owned(), zones.iter().map(|to| cell(from, to)).collect());
    HtmlMatrix {
        corner: "from \\ to".to_owned(),
        columns: zones.iter().map(|zone| (*zone).to_owned()).collect(),
        rows: zones.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sources_columns_are_targets_and_every_cell_has_its_number() {
        let share = |from: &str, to: &str| match (from, to) {
            ("a", "a") => 0.5,
            ("a", "b<") => 0.25,
            ("b<", "b<") => 0.25,
            _ => 0.0,
        };
        let html = zone_matrix(&["a", "b<"], share).html();
        let rows: Vec<&str> = html.split("<tr>").collect();
        assert_eq!(rows.len(), 4, "{html}");
        assert!(rows[1].contains("from \\ to") && rows[1].contains("b&lt;"), "{html}");
        assert!(
            rows[2].starts_with(
                "<th scope=\"row\">a</th><td class=\"s5 own\">50.0</td><td class=\"s3\">25.0</td>"
            )
        );
        assert!(rows[3].starts_with(
            "<th scope=\"row\">b&lt;</th><td class=\"s0\">0</td><td class=\"s3 own\">25.0</td>"
        ));
    }
}
