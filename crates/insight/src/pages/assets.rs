//! The files of the pages, part of the program. Their paths contain a digest, so that browsers keep them until they
//! change. uPlot 1.6.32 is from npm, unchanged, with its licence (MIT) beside it.

use std::sync::LazyLock;

use output::html::STYLE;

/// The part of the style that only the dashboard has.
pub(crate) const OWN_STYLE: &str = include_str!("../../assets/dashboard.css");

/// A file.
#[derive(Debug)]
pub struct DashboardAsset {
    name: &'static str,
    pub content_type: &'static str,
    content: LazyLock<(&'static [u8], u64)>,
}

macro_rules! asset {
    ($name:literal, $content_type:literal, $content:expr) => {
        DashboardAsset {
            name: $name,
            content_type: $content_type,
            content: LazyLock::new(|| {
                let content: &'static [u8] = $content;
                (content, crate::pages::digest(content))
            }),
        }
    };
}

pub static APP_JS: DashboardAsset =
    asset!("app.js", "text/javascript; charset=utf-8", include_bytes!("../../assets/app.js"));
pub static STYLE_CSS: DashboardAsset =
    asset!("style.css", "text/css; charset=utf-8", format!("{STYLE}{OWN_STYLE}").leak().as_bytes());
pub static UPLOT_JS: DashboardAsset = asset!(
    "uplot.js",
    "text/javascript; charset=utf-8",
    include_bytes!("../../assets/uplot/uPlot.iife.min.js")
);
pub static UPLOT_CSS: DashboardAsset =
    asset!("uplot.css", "text/css; charset=utf-8", include_bytes!("../../assets/uplot/uPlot.min.css"));

impl DashboardAsset {
    /// The path with the digest of the content.
    pub fn path(&self) -> String {
        format!("/assets/{:016x}/{}", self.content.1, self.name)
    }

    pub fn content(&self) -> &'static [u8] {
        self.content.0
    }
}

/// The file at a path; `None` for others, and for another version of it.
pub fn find(path: &str) -> Option<&'static DashboardAsset> {
    [&APP_JS, &STYLE_CSS, &UPLOT_JS, &UPLOT_CSS].into_iter().find(|asset| asset.path() == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_their_digest() {
        for asset in [&APP_JS, &STYLE_CSS, &UPLOT_JS, &UPLOT_CSS] {
            assert_eq!(find(&asset.path()).map(|found| found.name), Some(asset.name));
            assert!(!asset.content().is_empty());
        }
        assert!(find("/assets/0/app.js").is_none() && find("/assets/app.js").is_none());
    }
}
