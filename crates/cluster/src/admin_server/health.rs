//! Health as a list of named checks: all fine is 200, anything else is 503 with the names and the reasons.

use std::fmt::Write;
use std::sync::Arc;

use http::StatusCode;

use super::Page;

type Ask = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Named checks, asked in order at every request.
#[derive(Clone, Default)]
pub struct Checks {
    checks: Vec<(&'static str, Ask)>,
}

impl Checks {
    /// Adds a check, which must not wait: it says what is wrong.
    pub fn check(
        mut self,
        name: &'static str,
        ask: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.checks.push((name, Arc::new(ask)));
        self
    }

    /// `ok`, or every check with its result. Kubernetes' `?verbose` shows the list when all is fine, too.
    pub(super) fn page(&self, query: &str) -> Page {
        let mut list = String::new();
        let mut well = true;
        for (name, ask) in &self.checks {
            let written = match ask() {
                Ok(()) => writeln!(list, "[+]{name} ok"),
                Err(why) => {
                    well = false;
                    writeln!(list, "[-]{name} failed: {why}")
                }
            };
            written.expect("writing into a String cannot fail");
        }
        let verbose = query.split('&').any(|part| part == "verbose" || part.starts_with("verbose="));
        match (well, verbose) {
            (true, false) => Page::text(StatusCode::OK, "ok"),
            (true, true) => Page::text(StatusCode::OK, list + "check passed\n"),
            (false, _) => Page::text(StatusCode::SERVICE_UNAVAILABLE, list + "check failed\n"),
        }
    }
}
