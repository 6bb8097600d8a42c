//! `cargo xtask docs`: the documentation as a searchable site, `target/site`, with every link and anchor checked.
//!
//! The pages are copied to `target/site-source` with the folders of the repository, so that a relative link means the
//! same in the repository and on the site:
//!
//! ```text
//! *.md, docs/, examples/, deploy/, vectors/README.md --> target/site-source \
//! mkdocs.yml, with its *.md written out ---------------> target/mkdocs.yml  --> mkdocs build --strict --> target/site
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Stop, report, shell, tools};

/// What the pages are, and what they link to. Other files of the repository are named in backticks, not linked.
const PAGES: &[&str] = &["docs", "examples", "deploy", "vectors/README.md", "LICENSE"];

/// Where `--serve` listens.
const SERVE_PORT: &str = "8000";

/// Builds the site; with `serve`, shows it until it is interrupted.
pub(crate) fn run(install: bool, serve: bool) -> Result<(), Stop> {
    report::heading("docs: the site, and every link in it");
    tools::ensure(&[tools::MKDOCS], install)?;
    build()?;
    let site = site();
    report::say(&format!("open {}", site.join("index.html").display()));
    if !serve {
        report::say("the search needs a web server: cargo xtask docs --serve");
        return Ok(());
    }
    report::say(&format!("serving http://127.0.0.1:{SERVE_PORT}; Ctrl-C ends it"));
    let mut server = mkdocs(&["-m", "http.server", "--bind", "127.0.0.1", "--directory"]);
    shell::run(server.arg(&site).arg(SERVE_PORT), "the web server", "is the port in use?")
}

/// Copies the pages and builds the site out of them. Warnings are errors.
pub(crate) fn build() -> Result<(), Stop> {
    let source = shell::target_dir().join("site-source");
    match fs::remove_dir_all(&source) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(&source, &error)),
        _ => {}
    }
    for page in root_pages()?.iter().map(String::as_str).chain(PAGES.iter().copied()) {
        copy(&shell::root().join(page), &source.join(page))?;
    }
    let config = shell::root().join("mkdocs.yml");
    let text = fs::read_to_string(&config).map_err(|error| failed(&config, &error))?;
    let written_out = shell::target_dir().join("mkdocs.yml");
    let text = write_out(&text, |folder| pages_of(&source, folder));
    fs::write(&written_out, text).map_err(|error| failed(&written_out, &error))?;
    let mut build = mkdocs(&["-m", "mkdocs", "build", "--strict", "--config-file"]);
    // Its authors' notice about the next major version is not for readers of our output.
    build.arg(&written_out).env("NO_MKDOCS_2_WARNING", "1");
    let advice = "fix each warning above: a page belongs into `nav` of mkdocs.yml, a link leads to a page or to a file of \
                  docs, examples or deploy";
    shell::run(&mut build, "mkdocs build", advice)
}

fn site() -> PathBuf {
    shell::target_dir().join("site")
}

fn mkdocs(words: &[&str]) -> std::process::Command {
    let mut command = shell::program(shell::tools().bin().join(tools::MKDOCS.program));
    command.args(words);
    command
}

/// README.md and the others at the root.
fn root_pages() -> Result<Vec<String>, Stop> {
    let root = shell::root();
    let entries = fs::read_dir(&root).map_err(|error| failed(&root, &error))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name.ends_with(".md")).collect())
}

/// Copies a file, or a folder with all that is in it.
fn copy(from: &Path, to: &Path) -> Result<(), Stop> {
    if from.is_dir() {
        let entries = fs::read_dir(from).map_err(|error| failed(from, &error))?;
        for entry in entries.flatten() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    if from.extension().is_some_and(|ending| ending == "md") {
        let text = fs::read_to_string(from).map_err(|error| failed(from, &error))?;
        return fs::write(to, for_mkdocs(&text)).map_err(|error| failed(to, &error));
    }
    fs::copy(from, to).map(|_| ()).map_err(|error| failed(from, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Stop {
    Stop::Failed(format!("{}: {error}", path.display()))
}

/// A page as mkdocs reads it: code blocks have one word. A second one that is a file name becomes a title.
fn for_mkdocs(page: &str) -> String {
    let line = |line: &str| {
        if line.starts_with('|') {
            return table_row(line);
        }
        let Some((language, name)) = line.strip_prefix("```").and_then(|info| info.split_once(' ')) else {
            return line.to_string();
        };
        let title = if name.contains('.') { format!(" title=\"{name}\"") } else { String::new() };
        format!("```{language}{title}")
    };
    page.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

/// GitHub needs `\|` for a pipe in code inside a table; mkdocs would show the backslash.
fn table_row(line: &str) -> String {
    let parts = line.split('`').enumerate();
    let parts = parts.map(|(i, part)| if i % 2 == 1 { part.replace("\\|", "|") } else { part.to_string() });
    parts.collect::<Vec<_>>().join("`")
}

/// The configuration with a line for each page in place of `- docs/guide/*.md`.
fn write_out(config: &str, pages: impl Fn(&str) -> Vec<String>) -> String {
    let mut lines = Vec::new();
    for line in config.lines() {
        let folder = line.trim_start().strip_prefix("- ").and_then(|entry| entry.strip_suffix("/*.md"));
        match folder {
            Some(folder) => {
                let indent = &line[..line.len() - line.trim_start().len()];
                lines.extend(pages(folder).iter().map(|page| format!("{indent}- {folder}/{page}")));
            }
            None => lines.push(line.to_string()),
        }
    }
    lines.join("\n") + "\n"
}

/// The pages of a folder: its README first, then by name.
fn pages_of(source: &Path, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(source.join(folder)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".md")).collect();
    names.sort_by_key(|name| (name != "README.md", name.clone()));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_code_inside_a_table_loses_its_backslash() {
        assert_eq!(for_mkdocs("| `a\\|b` | c \\| d |"), "| `a|b` | c \\| d |\n");
    }

    #[test]
    fn code_blocks_have_one_word_and_a_title() {
        let page = "# A\n```sh cluster\nls\n```\n```yaml web.yaml\na: 1\n```\n```\nplain\n```\n";
        let expected = "# A\n```sh\nls\n```\n```yaml title=\"web.yaml\"\na: 1\n```\n```\nplain\n```\n";
        assert_eq!(for_mkdocs(page), expected);
    }

    #[test]
    fn a_line_of_nav_stands_for_all_pages_of_its_folder() {
        let config = "nav:\n  - A: README.md\n  - Guides:\n      - guides/*.md\nplugins: [search]\n";
        let written = write_out(config, |folder| vec![format!("{}.md", folder.len()), "b.md".to_string()]);
        let expected = "nav:\n  - A: README.md\n  - Guides:\n      - guides/6.md\n      - guides/b.md\nplugins: [search]\n";
        assert_eq!(written, expected);
    }
}
