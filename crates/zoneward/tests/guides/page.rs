//! A page of documentation, as the commands, files and claims that it has.
//!
//! ```text
//! ```sh                      commands, run as they stand
//! zoneward plan slices -f examples/shop
//! #> PreferSameZone          a line of the output has this; `...` stands for anything
//! ```
//! ```sh cluster              commands that need a real cluster: not run
//! ```sh build                builds, and the test suite itself: not run
//! ```yaml monday.yaml        a file that later commands read
//! ```yaml, text, ...         not for a shell
//! ```

/// What is done with a page, in order.
#[derive(Debug)]
pub struct Page {
    pub blocks: Vec<Block>,
}

#[derive(Debug)]
pub enum Block {
    File { path: String, content: String },
    Commands(Vec<Step>),
}

/// One command and what its output must have.
#[derive(Debug, PartialEq)]
pub struct Step {
    /// Its line on the page.
    pub line: usize,
    pub command: String,
    pub claims: Vec<String>,
}

/// What blocks of data may be called.
const DATA: &[&str] = &["yaml", "json", "csv", "text"];

impl Page {
    /// Reads a page; faults are of its form.
    pub fn parse(name: &str, text: &str) -> Result<Page, Vec<String>> {
        let (mut blocks, mut faults) = (Vec::new(), Vec::new());
        let mut lines = text.lines().enumerate();
        let mut after_blank = false;
        while let Some((index, line)) = lines.next() {
            let Some(info) = line.trim_start().strip_prefix("```") else {
                if after_blank && line.starts_with("    ") && !line.trim_start().starts_with(['-', '|', '>'])
                {
                    faults.push(format!("{name}:{}: indented code: fence it, and say what it is", index + 1));
                }
                after_blank = line.is_empty() || (after_blank && line.starts_with("    "));
                continue;
            };
            let indent = line.len() - line.trim_start().len();
            let inside: Vec<(usize, &str)> = lines
                .by_ref()
                .take_while(|(_, line)| line.trim() != "```")
                .map(|(index, line)| (index + 1, line.get(indent..).unwrap_or("")))
                .collect();
            match block(info.trim(), &inside) {
                Ok(Some(block)) => blocks.push(block),
                Ok(None) => {}
                Err(why) => faults.push(format!("{name}:{}: {why}", index + 1)),
            }
            after_blank = false;
        }
        if faults.is_empty() { Ok(Page { blocks }) } else { Err(faults) }
    }
}

fn block(info: &str, inside: &[(usize, &str)]) -> Result<Option<Block>, String> {
    let words: Vec<&str> = info.split_whitespace().collect();
    match words[..] {
        ["sh"] => Ok(Some(Block::Commands(steps(inside)))),
        ["sh", "cluster"] => Ok(None),
        ["sh", "build"] => match steps(inside).iter().find(|step| !step.command.starts_with("cargo ")) {
            Some(step) => Err(format!("`{}` is no build: only cargo's commands are excepted", step.command)),
            None => Ok(None),
        },
        [kind] if DATA.contains(&kind) => Ok(None),
        [kind, path] if DATA.contains(&kind) => {
            let content = inside.iter().map(|(_, line)| format!("{line}\n")).collect();
            Ok(Some(Block::File { path: path.to_string(), content }))
        }
        _ => Err(format!(
            "a block that says `{info}`: it is `sh`, `sh cluster`, `sh build`, or one of {}",
            DATA.join(", ")
        )),
    }
}

/// Lines as commands: one goes on while it is not complete, and lines with `#>` below it are its claims.
fn steps(inside: &[(usize, &str)]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut open: Option<Step> = None;
    for (line, text) in inside {
        if let Some(claim) = text.strip_prefix("#>").filter(|_| open.is_none()) {
            steps.last_mut().expect("a claim follows a command").claims.push(claim.trim().to_string());
            continue;
        }
        if open.is_none() && (text.trim().is_empty() || text.starts_with('#')) {
            continue;
        }
        let mut step =
            open.take().unwrap_or(Step { line: *line, command: String::new(), claims: Vec::new() });
        if !step.command.is_empty() {
            step.command.push('\n');
        }
        step.command.push_str(text);
        if is_complete(&step.command) { steps.push(step) } else { open = Some(step) }
    }
    steps.extend(open);
    steps
}

/// Whether a shell would run it without waiting for more: it goes on after a backslash, in a here-document, in a loop, and
/// in a quotation.
fn is_complete(command: &str) -> bool {
    if command.ends_with('\\') {
        return false;
    }
    if let Some((_, rest)) = command.split_once("<<") {
        let end = rest.lines().next().unwrap_or_default().split_whitespace().next().unwrap_or_default();
        let end = end.trim_matches('\'');
        return command.lines().skip(1).any(|line| line == end);
    }
    let words: Vec<&str> = command.split([' ', '\n', ';']).collect();
    let count = |word: &str| words.iter().filter(|found| **found == word).count();
    count("do") == count("done") && command.matches('\'').count().is_multiple_of(2)
}

/// Whether the output has these lines, in this order; `...` in a claim stands for anything.
pub fn holds(output: &str, claims: &[String]) -> Result<(), String> {
    let mut lines = output.lines();
    for claim in claims {
        if !lines.by_ref().any(|line| has(line, claim)) {
            return Err(format!("no line (below those of the claims before it) has: {claim}"));
        }
    }
    Ok(())
}

/// Runs of spaces count as one, since tables are as wide as their cells.
fn has(line: &str, claim: &str) -> bool {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = squeeze(line);
    let mut rest = line.as_str();
    for part in claim.split("...").map(squeeze).filter(|part| !part.is_empty()) {
        let Some(at) = rest.find(&part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[test]
fn a_page_is_read_as_files_commands_and_claims() {
    let text = "# Title\n\n```sh\none -f a \\\n  -b\n#> first\n#> 1 ... 3\n\ntwo <<END\nx\nEND\nfor i in a; do\n  echo $i\ndone\n```\n\
                ```sh cluster\nkubectl get nodes\n```\n\n```yaml a.yaml\nkind: X\n```\n```sh build\ncargo build\n```\n";
    let page = Page::parse("x.md", text).expect("a good page");
    let [Block::Commands(steps), Block::File { path, content }] = &page.blocks[..] else {
        panic!("{:?}", page.blocks)
    };
    assert_eq!((path.as_str(), content.as_str()), ("a.yaml", "kind: X\n"));
    let commands: Vec<(usize, &str)> = steps.iter().map(|step| (step.line, step.command.as_str())).collect();
    assert_eq!(
        commands,
        [(4, "one -f a \\\n  -b"), (9, "two <<END\nx\nEND"), (12, "for i in a; do\n  echo $i\ndone")]
    );
    assert_eq!(steps[0].claims, ["first", "1 ... 3"]);
    assert_eq!(holds("the first line\n1  2   3\n", &steps[0].claims), Ok(()));
    assert!(holds("1 2 3\nthe first line\n", &steps[0].claims).is_err(), "in this order");
}

#[test]
fn commands_that_would_not_be_run_are_faults() {
    for text in [
        "text\n\n    zoneward plan slices\n",
        "```\nzoneward up\n```\n",
        "```bash\nzoneward up\n```\n",
        "```sh build\nzoneward up\n```\n",
        "```sh later\nzoneward up\n```\n",
    ] {
        assert!(Page::parse("x.md", text).is_err(), "{text}");
    }
}
