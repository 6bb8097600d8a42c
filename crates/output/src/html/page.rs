//! Builds an HTML page: headings, tables and figures.

use std::fmt::Write;

use super::escaped;
use super::matrix::HtmlMatrix;

/// The style of all pages: light, dark and print; tables become lists on narrow screens.
pub const STYLE: &str = include_str!("style.css");

/// Content of a table cell: a number, unless made by [`HtmlCell::text`] or [`HtmlCell::link`].
#[derive(Clone, Debug)]
pub struct HtmlCell {
    html: String,
    is_text: bool,
}

impl HtmlCell {
    pub fn text(text: &str) -> Self {
        Self { html: escaped(text), is_text: true }
    }

    pub fn link(text: &str, target: &str) -> Self {
        Self { html: format!("<a href=\"{}\">{}</a>", escaped(target), escaped(text)), is_text: true }
    }
}

impl From<String> for HtmlCell {
    fn from(number: String) -> Self {
        Self { html: escaped(&number), is_text: false }
    }
}

#[derive(Debug)]
pub struct HtmlPage {
    text: String,
    in_figures: bool,
}

impl HtmlPage {
    pub fn new(title: &str) -> Self {
        let title = escaped(title);
        let text = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\"><link rel=\"icon\" href=\"data:,\">\
             <title>{title}</title>\n<style>\n{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        );
        Self { text, in_figures: false }
    }

    fn end_figures(&mut self) {
        if std::mem::take(&mut self.in_figures) {
            self.text += "</div>\n";
        }
    }

    fn add(&mut self, html: &str) {
        self.end_figures();
        self.text += html;
    }

    pub fn paragraph(&mut self, text: &str) {
        self.add(&format!("<p>{}</p>\n", escaped(text)));
    }

    /// A paragraph of secondary importance.
    pub fn remark(&mut self, text: &str) {
        self.add(&format!("<p class=\"faint\">{}</p>\n", escaped(text)));
    }

    /// Preformatted text.
    pub fn verbatim(&mut self, text: &str) {
        self.add(&format!("<pre>{}</pre>\n", escaped(text)));
    }

    pub fn section(&mut self, title: &str, description: &str) {
        self.add(&format!("<h2>{}</h2>\n<p class=\"faint\">{}</p>\n", escaped(title), escaped(description)));
    }

    /// A section that a link with `#id` leads to.
    pub fn section_at(&mut self, id: &str, title: &str, description: &str) {
        self.add(&format!(
            "<h2 id=\"{}\">{}</h2>\n<p class=\"faint\">{}</p>\n",
            escaped(id),
            escaped(title),
            escaped(description)
        ));
    }

    /// What follows up to [`Self::end_details`] is shown on request.
    pub fn details(&mut self, summary: &str) {
        self.add(&format!("<details><summary>{}</summary>\n", escaped(summary)));
    }

    pub fn end_details(&mut self) {
        self.add("</details>\n");
    }

    /// The first column names the row; it is a list on a narrow screen.
    pub fn table(&mut self, heads: &[&str], rows: Vec<Vec<HtmlCell>>) {
        let mut html = "<table class=\"rows\"><thead><tr>".to_owned();
        for (at, head) in heads.iter().enumerate() {
            let is_text = rows.first().and_then(|row| row.get(at)).is_some_and(|cell| cell.is_text);
            let class = if is_text { " class=\"text\"" } else { "" };
            let _ = write!(html, "<th scope=\"col\"{class}>{}</th>", escaped(head));
        }
        html += "</tr></thead><tbody>\n";
        for row in rows {
            html += "<tr>";
            for (cell, head) in row.iter().zip(heads) {
                let class = if cell.is_text { " class=\"text\"" } else { "" };
                let _ = write!(html, "<td{class} data-head=\"{}\">{}</td>", escaped(head), cell.html);
            }
            html += "</tr>\n";
        }
        self.add(&(html + "</tbody></table>\n"));
    }

    /// Consecutive figures share a row where there is room. Without a caption, a figure takes the whole width.
    pub fn figure(&mut self, svg: &str, caption: &str) {
        self.start_figures(if caption.is_empty() { "figures wide" } else { "figures" });
        let _ = writeln!(self.text, "<figure>{svg}<figcaption>{}</figcaption></figure>", escaped(caption));
    }

    /// A matrix among the figures.
    pub fn matrix(&mut self, matrix: &HtmlMatrix, caption: &str) {
        self.start_figures(matrix_class(matrix));
        let _ = writeln!(
            self.text,
            "<figure><figcaption>{}</figcaption><div class=\"scroll\">{}</div></figure>",
            escaped(caption),
            matrix.html()
        );
    }

    fn start_figures(&mut self, class: &str) {
        if !self.in_figures {
            let _ = writeln!(self.text, "<div class=\"{class}\">");
            self.in_figures = true;
        }
    }

    pub fn finish(mut self) -> String {
        self.end_figures();
        self.text + "</body></html>\n"
    }
}

/// Matrices with many columns are fewer in a row.
fn matrix_class(matrix: &HtmlMatrix) -> &'static str {
    if matrix.columns.len() > 4 { "figures large" } else { "figures" }
}
