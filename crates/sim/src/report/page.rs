//! Builds an HTML page: headings, tables and figures.

use std::fmt::Write;

const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1d2733;--faint:#667;--line:#d5dbe3;--mark:#0b6e99;--soft:#0b6e9922}\
@media (prefers-color-scheme:dark){:root{--paper:#14181d;--ink:#e3e8ee;--faint:#98a2b0;--line:#333c47;--mark:#5bb8e0;--soft:#5bb8e022}}\
@media print{:root{--paper:#fff;--ink:#000;--faint:#444;--line:#bbb;--mark:#0b6e99;--soft:#0b6e9922}figure{break-inside:avoid}}\
body{margin:2rem auto;max-width:62rem;padding:0 1rem;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}\
h1{font-size:1.6rem}h2{font-size:1.15rem;margin:2.2rem 0 .3rem}p{color:var(--faint);margin:.2rem 0 1rem}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.25rem .8rem .25rem 0;text-align:right;border-bottom:1px solid var(--line)}\
th:first-child,td:first-child{text-align:left}th{font-weight:600;color:var(--faint)}\
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(19rem,1fr));gap:1rem}.wide{grid-template-columns:1fr}\
figure{margin:0}figcaption{font-size:.9rem}svg{width:100%;height:auto;display:block}svg text{fill:var(--faint);font-size:11px}\
.mark{fill:var(--mark)}.axis{stroke:var(--line)}.path{fill:none;stroke:var(--mark);stroke-width:1.5}.frame{fill:none;stroke:var(--line)}\
.c1{stroke:#c2571a}.c2{stroke:#4b8b3b}.c3{stroke:#8a4fbf}.c4{stroke:#b8860b}.c5{stroke:#c2185b}.c6{stroke:#6b7a8a}\
svg .name{fill:var(--ink);font-size:12px}pre{background:var(--soft);padding:.7rem;overflow:auto}";

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
             <title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
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

    /// Preformatted text.
    pub fn verbatim(&mut self, text: &str) {
        self.add(&format!("<pre>{}</pre>\n", escaped(text)));
    }

    pub fn section(&mut self, title: &str, description: &str) {
        self.add(&format!("<h2>{}</h2>\n<p>{}</p>\n", escaped(title), escaped(description)));
    }

    /// The first column is text, the others are numbers.
    pub fn table(&mut self, heads: &[&str], rows: Vec<Vec<String>>) {
        let mut html = "<table><thead><tr>".to_owned();
        heads.iter().for_each(|head| html += &format!("<th>{}</th>", escaped(head)));
        html += "</tr></thead><tbody>\n";
        for row in rows {
            html += "<tr>";
            row.iter().for_each(|cell| html += &format!("<td>{}</td>", escaped(cell)));
            html += "</tr>\n";
        }
        self.add(&(html + "</tbody></table>\n"));
    }

    /// Consecutive figures share a row where there is room.
    pub fn figure(&mut self, svg: &str, caption: &str) {
        if !self.in_figures {
            let class = if caption.is_empty() { "figures wide" } else { "figures" };
            let _ = writeln!(self.text, "<div class=\"{class}\">");
            self.in_figures = true;
        }
        let _ = writeln!(self.text, "<figure>{svg}<figcaption>{}</figcaption></figure>", escaped(caption));
    }

    pub fn finish(mut self) -> String {
        self.end_figures();
        self.text + "</body></html>\n"
    }
}

pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
