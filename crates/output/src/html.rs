//! HTML pages and their parts: text, tables, matrices by zone, and plots as SVG. They have neither scripts nor inline
//! styles, so that a page works as a file, in print, and under a strict Content-Security-Policy.

mod matrix;
mod page;
mod svg;

pub use matrix::{HtmlMatrix, MatrixCell, zone_matrix};
pub use page::{HtmlCell, HtmlPage, STYLE};
pub use svg::{bars, bars_named, lines, scatter};

/// Text for element content and quoted attributes.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
