//! Health endpoints as named checks: 200 if all pass, else 503 with each result, in the format of kube-apiserver.

use std::fmt::Write;
use std::sync::Arc;

use http::StatusCode;

use super::AdminPage;

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Named checks, run in order at every request.
#[derive(Clone, Default)]
pub struct HealthChecks {
    checks: Vec<(&'static str, Check)>,
}

impl HealthChecks {
    /// Adds a check, which must not block and returns the reason of a failure.
    pub fn check(
        mut self,
        name: &'static str,
        run: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.checks.push((name, Arc::new(run)));
        self
    }

    /// `ok`, or with `?verbose` or a failure every check with its result.
    pub(super) fn page(&self, query: &str) -> AdminPage {
        let mut list = String::new();
        let mut healthy = true;
        for (name, run) in &self.checks {
            let written = match run() {
                Ok(()) => writeln!(list, "[+]{name} ok"),
                Err(reason) => {
                    healthy = false;
                    writeln!(list, "[-]{name} failed: {reason}")
                }
            };
            written.expect("writing into a String cannot fail");
        }
        let verbose = query.split('&').any(|part| part == "verbose" || part.starts_with("verbose="));
        match (healthy, verbose) {
            (true, false) => AdminPage::text(StatusCode::OK, "ok"),
            (true, true) => AdminPage::text(StatusCode::OK, list + "check passed\n"),
            (false, _) => AdminPage::text(StatusCode::SERVICE_UNAVAILABLE, list + "check failed\n"),
        }
    }
}
