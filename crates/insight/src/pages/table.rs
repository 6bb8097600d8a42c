//! Tables that sort by links and are lists on a phone, and small bars in their cells.

use std::fmt::Write;

use output::html::escaped;

/// A column; with a key, its head is a link that sorts by it.
pub(crate) struct TableColumn {
    pub head: &'static str,
    pub sort: Option<&'static str>,
    pub is_text: bool,
}

impl TableColumn {
    pub(super) fn text(head: &'static str) -> Self {
        Self { head, sort: None, is_text: true }
    }

    pub(super) fn number(head: &'static str) -> Self {
        Self { head, sort: None, is_text: false }
    }

    pub(super) fn sorted_by(self, key: &'static str) -> Self {
        Self { sort: Some(key), ..self }
    }
}

/// How a table is sorted.
pub(crate) struct TableOrder<'a> {
    pub key: &'a str,
    pub descending: bool,
    /// The link that sorts by a key.
    pub link: &'a dyn Fn(&str) -> String,
}

/// Rows of HTML cells; the first column names the row.
pub(crate) fn table(columns: &[TableColumn], order: Option<&TableOrder<'_>>, rows: &[Vec<String>]) -> String {
    let mut html = "<div class=\"scroll\"><table class=\"rows\"><thead><tr>".to_owned();
    for column in columns {
        let class = if column.is_text { " class=\"text\"" } else { "" };
        let _ = match (column.sort, order) {
            (Some(key), Some(order)) => {
                let (aria, arrow) = match (key == order.key, order.descending) {
                    (false, _) => ("", ""),
                    (true, true) => (" aria-sort=\"descending\"", " \u{2193}"),
                    (true, false) => (" aria-sort=\"ascending\"", " \u{2191}"),
                };
                write!(
                    html,
                    "<th scope=\"col\"{class}{aria}><a href=\"{}\" data-soft>{}{arrow}</a></th>",
                    escaped(&(order.link)(key)),
                    column.head
                )
            }
            _ => write!(html, "<th scope=\"col\"{class}>{}</th>", column.head),
        };
    }
    html += "</tr></thead><tbody>\n";
    for row in rows {
        html += "<tr>";
        for (cell, column) in row.iter().zip(columns) {
            let class = if column.is_text { " class=\"text\"" } else { "" };
            let _ = write!(html, "<td{class} data-head=\"{}\">{cell}</td>", column.head);
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

pub(crate) fn anchor(text: &str, target: &str) -> String {
    format!("<a href=\"{}\">{}</a>", escaped(target), escaped(text))
}

/// A text and a bar of its share, with a tick at the planned one.
pub(crate) fn share_bar(text: &str, share: f64, planned: Option<f64>) -> String {
    let place = |share: f64| (share.clamp(0.0, 1.0) * 100.0).round();
    let tick = planned.map(|planned| format!("<path class=\"tick\" d=\"M{:.0} 0v8\"/>", place(planned)));
    format!(
        "<span class=\"share\">{} <svg class=\"bar\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"part\" width=\"100\" height=\"8\"/><rect class=\"mark\" width=\"{:.0}\" height=\"8\"/>{}</svg></span>",
        escaped(text),
        place(share),
        tick.unwrap_or_default()
    )
}

/// Text that a button copies. The button is shown by the script, since it needs one.
pub(crate) fn copyable(text: &str) -> String {
    let text = escaped(text);
    format!(
        "<div class=\"copy\"><pre><code>{text}</code></pre>\
         <button type=\"button\" hidden data-copy=\"{text}\">Copy</button></div>\n"
    )
}

/// Links to the pages of a long table.
pub(crate) fn pager(
    shown: std::ops::Range<usize>,
    all: usize,
    link: impl Fn(usize) -> String,
    page: usize,
) -> String {
    if all == 0 {
        return String::new();
    }
    let range = format!("{}\u{2013}{} of {all}", shown.start + 1, shown.end);
    let to =
        |number: usize, text: &str| format!(" <a href=\"{}\" data-soft>{text}</a>", escaped(&link(number)));
    let before = if page > 1 { to(page - 1, "Previous") } else { String::new() };
    let after = if shown.end < all { to(page + 1, "Next") } else { String::new() };
    format!("<p class=\"pager\">{range}{before}{after}</p>\n")
}
