//! What `sealane check` concludes about each thing that it checks: a verdict, what was found, and the remedy; and its text for a
//! terminal of 80 columns.

use std::fmt::{self, Write};

use serde::Serialize;

/// Terminal width that is assumed.
pub(super) const COLUMNS: usize = 80;
/// Width of the column for a finding's name: that of the longest, `isolated CPUs` and `receive buffers`.
const NAME_COLUMNS: usize = 15;
/// Column at which the text of a finding begins.
const MARGIN: usize = 2 + 6 + 2 + NAME_COLUMNS + 2;

/// What a thing means for a daemon on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Ok,
    /// It works, but slower or less safely than it could.
    CouldBeBetter,
    /// A daemon would not start, or would not reach its peers.
    WillNotWork,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Verdict::Ok => "ok",
            Verdict::CouldBeBetter => "better",
            Verdict::WillNotWork => "fails",
        })
    }
}

/// One thing that was checked.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What was checked: a few words, the same on every host.
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    /// What was found and, unless the verdict is ok, what is wrong with it.
    pub(super) says: String,
    /// What to do; `null` if nothing needs to be done.
    pub(super) remedy: Option<Remedy>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Remedy {
    /// For a shell, as it is.
    Command(String),
    /// What no command on this host can do.
    Advice(String),
}

/// Advice, where a command would be expected.
pub(super) fn advice(text: impl Into<String>) -> Remedy {
    Remedy::Advice(text.into())
}

impl From<&str> for Remedy {
    fn from(command: &str) -> Remedy {
        Remedy::Command(command.to_owned())
    }
}

impl From<String> for Remedy {
    fn from(command: String) -> Remedy {
        Remedy::Command(command)
    }
}

impl Finding {
    /// The command or the advice; empty if nothing needs to be done.
    pub(super) fn remedy(&self) -> &str {
        match &self.remedy {
            Some(Remedy::Command(text) | Remedy::Advice(text)) => text,
            None => "",
        }
    }

    pub(super) fn ok(name: &'static str, says: impl Into<String>) -> Finding {
        Finding { name, verdict: Verdict::Ok, says: says.into(), remedy: None }
    }

    pub(super) fn better(name: &'static str, says: impl Into<String>, remedy: impl Into<Remedy>) -> Finding {
        Finding { name, verdict: Verdict::CouldBeBetter, says: says.into(), remedy: Some(remedy.into()) }
    }

    /// With the verdict that a daemon would not start: `sentence` says what is wrong, and then what to do.
    pub(super) fn refused(name: &'static str, sentence: &str) -> Finding {
        let (says, remedy) = match (sentence.split_once(": set "), sentence.split_once("; ")) {
            (Some((says, set)), _) => (says, format!("set {set}")),
            (None, Some((says, remedy))) => (says, remedy.to_owned()),
            (None, None) => (sentence, "sealane daemon says more".to_owned()),
        };
        Finding::fails(name, says, advice(remedy))
    }

    pub(super) fn fails(name: &'static str, says: impl Into<String>, remedy: impl Into<Remedy>) -> Finding {
        Finding { name, verdict: Verdict::WillNotWork, says: says.into(), remedy: Some(remedy.into()) }
    }
}

/// `text` behind `head`, with further lines indented by `margin` columns; below the head if that is longer than the margin. A word
/// that is longer than a line gets its own line.
pub(super) fn wrapped(head: &str, margin: usize, text: &str) -> String {
    let mut lines = vec![format!("{head:margin$}")];
    if head.chars().count() > margin {
        lines = vec![head.trim_end().to_owned(), " ".repeat(margin)];
    }
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is the head");
        match line.chars().count() {
            column if column == margin => line.push_str(word),
            column if column + 1 + word.chars().count() <= COLUMNS => *line += &format!(" {word}"),
            _ => lines.push(format!("{:margin$}{word}", "")),
        }
    }
    lines.join("\n") + "\n"
}

/// A finding with its verdict in front, and what to do below it. Its name may be long.
pub(super) fn shown(name: &str, finding: &Finding) -> String {
    let mut text = wrapped(&format!("  {:6}  {name:NAME_COLUMNS$}  ", finding.verdict), MARGIN, &finding.says);
    match &finding.remedy {
        None => {}
        // A command is meant to be copied: it is not wrapped, and is indented less if it is long.
        Some(Remedy::Command(command)) => {
            let margin = MARGIN.min(COLUMNS.saturating_sub(command.chars().count() + 2)).max(10);
            let _ = writeln!(text, "{:margin$}$ {command}", "");
        }
        Some(Remedy::Advice(advice)) => text += &wrapped(&format!("{:MARGIN$}> ", ""), MARGIN + 2, advice),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_before_the_last_column_and_begin_at_the_margin() {
        let text = wrapped("  head", 10, &"word ".repeat(40));
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
        assert!(text.starts_with("  head    word word"));
        assert!(text.lines().skip(1).all(|line| line.starts_with("          word")), "{text}");
        assert_eq!(text.split_whitespace().count(), 41);
    }

    #[test]
    fn a_long_word_stands_alone() {
        let long = "x".repeat(100);
        assert_eq!(wrapped("a", 4, &format!("b {long} c")), format!("a   b\n    {long}\n    c\n"));
    }

    #[test]
    fn a_finding_is_followed_by_what_to_do() {
        let shown = |finding: &Finding| super::shown(finding.name, finding);
        let told = shown(&Finding::better("ports", "few", "sudo sysctl -w a=b"));
        assert_eq!(told, "  better  ports            few\n                           $ sudo sysctl -w a=b\n");
        let long = Finding::fails("ports", "few", "c".repeat(60));
        let line = shown(&long);
        assert!(line.ends_with(&format!("\n{:18}$ {}\n", "", "c".repeat(60))), "{line}");
        let advised = shown(&Finding::fails("ports", "few", advice("do this ".repeat(9))));
        assert!(advised.contains(&format!("\n{:27}> do this do", "")), "{advised}");
        assert!(advised.lines().all(|line| line.len() <= COLUMNS), "{advised}");
        let address = super::shown("worker-0.train.ml.svc.cluster.local:7000", &Finding::ok("", "tcp"));
        assert_eq!(address, format!("  ok      worker-0.train.ml.svc.cluster.local:7000\n{:27}tcp\n", ""));
    }
}
