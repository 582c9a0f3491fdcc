//! Every message that the program may print when something is wrong, read from the source: the texts of error types, what
//! commands fail with, the reasons that errors are made of, and the log's warnings and errors. What other programs and the
//! system say fills the gaps in them, which stand as `…`. Bounded by the workspace.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, ExprCall, ExprStruct, Item, ItemFn, ItemMod, LitStr, Local, Macro, Pat, ReturnType};

/// The crates whose messages reach a user.
const CRATES: [&str; 6] = ["runtime/src", "transport/src", "fusion/src", "client/src", "bin/src", "bench/src"];

/// What makes an error of a text: type, function, and which argument the text is.
const MAKERS: [(&str, &str, usize); 9] = [
    ("Failure", "work", 0),
    ("Failure", "input", 0),
    ("Error", "full", 1),
    ("Error", "invalid", 0),
    ("Error", "unavailable", 1),
    ("VerbsError", "new", 1),
    ("LinkError", "io", 0),
    ("Turned", "Unauthenticated", 0),
    ("Answer", "Reject", 1),
];
/// Methods that tell somebody why, and which argument that is.
const TELLERS: [(&str, usize); 3] = [("give_up", 1), ("dial_failed", 1), ("reject", 1)];
/// Types whose variants hold texts.
const ERROR_TYPES: [&str; 4] = ["Error", "LinkError", "DialError", "DialFailure"];
/// What the log is written with that somebody should read.
const LOG_MACROS: [&str; 2] = ["warn", "error"];
/// Macros whose first text is a message's.
const FORMAT_MACROS: [&str; 2] = ["format", "format_args"];

/// A message, with its gaps as `…`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Message {
    pub(super) text: String,
    /// The files that make it, from the workspace's root.
    pub(super) files: BTreeSet<String>,
}

/// All messages of the workspace at `root`, in order of their text.
///
/// # Errors
/// A file cannot be read or is not Rust.
pub(super) fn all(root: &Path) -> Result<Vec<Message>, String> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for directory in CRATES {
        let mut files = Vec::new();
        rust_files(&root.join(directory), &mut files)?;
        let mut parsed = Vec::new();
        for file in files {
            let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            let syntax = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
            parsed.push((file, syntax));
        }
        // Functions that only make a text are read where it becomes an error.
        let mut speakers = Speakers::default();
        parsed.iter().for_each(|(_, syntax)| speakers.visit_file(syntax));
        for (file, syntax) in &parsed {
            let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
            for text in of_file(syntax, &speakers) {
                found.entry(text).or_default().insert(name.clone());
            }
        }
    }
    Ok(found.into_iter().map(|(text, files)| Message { text, files }).collect())
}

fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // What tests say is no user's, nor what the simulation says of a node whose books do not agree.
        if ["tests", "tests.rs", "invariants.rs"].contains(&name) {
            continue;
        }
        if path.is_dir() {
            rust_files(&path, files)?;
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The messages of one file.
fn of_file(syntax: &syn::File, speakers: &Speakers) -> BTreeSet<String> {
    let mut reader = Reader { speakers, lets: Vec::new(), texts: BTreeSet::new() };
    reader.visit_file(syntax);
    let templates = reader.texts.into_iter();
    templates.map(|template| with_gaps(&template)).filter(|text| says_something(text)).collect()
}

/// A message has words of its own: at least two, or one with its gap.
fn says_something(text: &str) -> bool {
    let words = text.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic));
    words.count() >= 2
}

/// A format's text with `…` where it has arguments.
fn with_gaps(template: &str) -> String {
    let (mut text, mut rest) = (String::new(), template);
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let (brace, doubled) = (&rest[at..=at], rest[at + 1..].starts_with(&rest[at..=at]));
        if doubled {
            text.push_str(brace);
            rest = &rest[at + 2..];
        } else {
            text.push('…');
            rest = rest[at..].find('}').map_or("", |end| &rest[at + end + 1..]);
        }
    }
    text.push_str(rest);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Functions that give a text, by name.
#[derive(Default)]
struct Speakers {
    blocks: HashMap<String, Vec<Block>>,
}

impl<'ast> Visit<'ast> for Speakers {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if gives_text(&function.sig.output) {
            let name = function.sig.ident.to_string();
            self.blocks.entry(name).or_default().push((*function.block).clone());
        }
    }
}

fn gives_text(output: &ReturnType) -> bool {
    let ReturnType::Type(_, given) = output else { return false };
    let syn::Type::Path(path) = &**given else { return false };
    path.path.segments.last().is_some_and(|last| last.ident == "String")
}

/// Finds the texts of a file.
struct Reader<'a> {
    speakers: &'a Speakers,
    /// What the functions around give names to.
    lets: Vec<HashMap<String, Expr>>,
    texts: BTreeSet<String>,
}

impl Reader<'_> {
    /// The texts in an argument that becomes an error's.
    fn take(&mut self, argument: &Expr) {
        let mut texts = Texts { texts: Vec::new(), names: Vec::new(), calls: Vec::new() };
        texts.visit_expr(argument);
        for name in std::mem::take(&mut texts.names) {
            if let Some(bound) = self.lets.iter().rev().find_map(|lets| lets.get(&name)) {
                texts.visit_expr(bound);
            }
        }
        for call in std::mem::take(&mut texts.calls) {
            for block in self.speakers.blocks.get(&call).into_iter().flatten() {
                texts.visit_block(block);
            }
        }
        self.texts.extend(texts.texts);
    }

    fn take_attributes(&mut self, attributes: &[Attribute]) {
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("error")) {
            if let syn::Meta::List(list) = &attribute.meta {
                self.texts.extend(literals(list.tokens.to_string()).into_iter().next());
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            self.take_attributes(attributes);
            visit::visit_item(self, item);
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.take_attributes(&variant.attrs);
    }

    fn visit_block(&mut self, block: &'ast Block) {
        self.lets.push(HashMap::new());
        visit::visit_block(self, block);
        self.lets.pop();
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if let (Some(init), Some(name)) = (&local.init, name_of(&local.pat))
            && let Some(lets) = self.lets.last_mut()
        {
            lets.insert(name, (*init.expr).clone());
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(path) = &*call.func {
            let segments: Vec<String> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            if let [.., maker, function] = &segments[..]
                && let Some((.., at)) = MAKERS.iter().find(|(name, makes, _)| name == maker && makes == function)
                && let Some(text) = call.args.iter().nth(*at)
            {
                self.take(text);
            }
            if let ([err], Some(text)) = (&segments[..], call.args.first())
                && err == "Err"
                && is_text(text)
            {
                self.take(text);
            }
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let at = TELLERS.iter().find(|(name, _)| call.method == name).map(|(_, at)| *at);
        if let Some(text) = at.and_then(|at| call.args.iter().nth(at)) {
            self.take(text);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_struct(&mut self, made: &'ast ExprStruct) {
        let segments: Vec<String> = made.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        // A variant, or a type of its own.
        if segments.iter().rev().take(2).any(|error| ERROR_TYPES.contains(&error.as_str())) {
            made.fields.iter().for_each(|field| self.take(&field.expr));
        }
        visit::visit_expr_struct(self, made);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        let name = called.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
        let is_logs = called.path.segments.first().is_some_and(|first| first.ident == "tracing");
        if is_logs && LOG_MACROS.contains(&name.as_str()) {
            // Fields come first, and may be texts; the message is the last.
            self.texts.extend(literals(called.tokens.to_string()).pop());
        }
        visit::visit_macro(self, called);
    }
}

/// The texts in an expression, and what else would give some.
struct Texts {
    texts: Vec<String>,
    names: Vec<String>,
    calls: Vec<String>,
}

impl<'ast> Visit<'ast> for Texts {
    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::Lit(literal) => {
                if let syn::Lit::Str(text) = &literal.lit {
                    self.texts.push(text.value());
                }
            }
            // An error that is made there is read there.
            Expr::Struct(_) => {}
            // What is said of a bug is nobody's to mend.
            Expr::MethodCall(call) if call.method == "expect" => self.visit_expr(&call.receiver),
            Expr::Path(path) => self.names.extend(path.path.get_ident().map(ToString::to_string)),
            Expr::Call(call) => {
                if let Expr::Path(path) = &*call.func {
                    self.calls.extend(path.path.segments.last().map(|last| last.ident.to_string()));
                }
                call.args.iter().for_each(|argument| self.visit_expr(argument));
            }
            _ => visit::visit_expr(self, expression),
        }
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        let name = called.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
        if FORMAT_MACROS.contains(&name.as_str()) {
            self.texts.extend(literals(called.tokens.to_string()).into_iter().next());
        }
    }
}

/// True for what is plainly a text: a literal, a format, or one of them made into another type of text.
fn is_text(expression: &Expr) -> bool {
    match expression {
        Expr::Lit(_) => true,
        Expr::Macro(called) => called.mac.path.segments.last().is_some_and(|last| last.ident == "format"),
        Expr::MethodCall(call) => is_text(&call.receiver),
        _ => false,
    }
}

fn name_of(pattern: &Pat) -> Option<String> {
    match pattern {
        Pat::Ident(name) => Some(name.ident.to_string()),
        _ => None,
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg_test = matches!(&attribute.meta, syn::Meta::List(list)
            if list.path.is_ident("cfg") && list.tokens.to_string() == "test");
        attribute.path().is_ident("test") || is_cfg_test
    })
}

/// The string literals among the tokens of a macro, in their order, not those within brackets.
fn literals(tokens: String) -> Vec<String> {
    // Tokens that are no expressions (`%error`, `peer = name`) are split at the commas outside of everything.
    let mut literals = Vec::new();
    let parser = |input: syn::parse::ParseStream<'_>| {
        while !input.is_empty() {
            if input.peek(LitStr) {
                literals.push(input.parse::<LitStr>()?.value());
            } else {
                input.step(|cursor| match cursor.token_tree() {
                    Some((_, rest)) => Ok(((), rest)),
                    None => Err(cursor.error("a token")),
                })?;
            }
        }
        Ok(())
    };
    match syn::parse::Parser::parse_str(parser, &tokens) {
        Ok(()) => literals,
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(source: &str) -> Vec<String> {
        let syntax = syn::parse_file(source).unwrap();
        let mut speakers = Speakers::default();
        speakers.visit_file(&syntax);
        of_file(&syntax, &speakers).into_iter().collect()
    }

    #[test]
    fn every_way_to_make_a_message_is_read() {
        let source = r#"
            #[derive(Error)]
            enum E {
                #[error("{path}: no such file; write {{ and {}", .0.display())]
                Missing(PathBuf),
                #[error(transparent)]
                Other(#[from] Io),
            }
            fn fails() -> Result<(), Failure> {
                let reason = format!("nothing was {found}");
                if a { return Err(Failure::work(reason)); }
                if b { return Err(Failure::input(said(1))); }
                tracing::warn!(%error, name = "a field here", "the log says {}", it);
                tracing::info!("not for everyone");
                let other = Error::unavailable(&peer, "it is gone now");
                let held = Error::PermissionDenied { reason: format!("{who} may not").into() };
                let nothing = format!("only a text");
                if c { return Err(format!("the range {text} ends")); }
                node.give_up(handle, "it went away");
                Err(made().map_err(|error| Failure::work(format!("cannot work ({error})")))?)
            }
            fn said(n: u32) -> String { format!("a text of {n} words") }
            #[cfg(test)]
            mod tests { fn f() { Failure::work("a test says so") } }
        "#;
        assert_eq!(
            messages(source),
            [
                "a text of … words",
                "cannot work (…)",
                "it is gone now",
                "it went away",
                "nothing was …",
                "the log says …",
                "the range … ends",
                "… may not",
                "…: no such file; write { and …",
            ]
        );
    }

    #[test]
    fn gaps_are_where_arguments_are() {
        assert_eq!(with_gaps("{{a}} {b:?} c{}"), "{a} … c…");
        assert_eq!(with_gaps("a \n   b"), "a b");
        assert_eq!(with_gaps("{open"), "…");
        assert!(!says_something("…: …") && says_something("the … fails"));
    }
}
