//! A part of a JSON Schema, which describes one kind of value.

use serde_json::Value;

use super::schema::SCHEMA;

/// A part of a schema, and the whole of it.
#[derive(Clone, Copy)]
pub struct Form(pub &'static Value, &'static Value);

impl Form {
    /// The whole config.
    pub fn config() -> Self {
        Self::whole(&SCHEMA)
    }

    /// A whole schema.
    pub fn whole(schema: &'static Value) -> Self {
        Self(schema, schema)
    }

    /// A part of the same schema, with references resolved.
    pub fn at(self, schema: &'static Value) -> Self {
        let reference = schema["$ref"].as_str();
        match reference.and_then(|reference| reference.strip_prefix("#/$defs/")) {
            Some(name) => self.at(&self.1["$defs"][name]),
            None => Self(schema, self.1),
        }
    }

    /// The form of a list's elements.
    pub fn items(self) -> Self {
        self.at(&self.0["items"])
    }

    /// The alternatives of this form, with nested choices flattened.
    pub fn forms(self) -> Vec<Self> {
        let choice = self.list("anyOf").chain(self.list("oneOf"));
        let forms: Vec<Self> = choice.flat_map(|form| self.at(form).forms()).collect();
        match forms.is_empty() {
            true => vec![self],
            false => forms,
        }
    }

    /// The forms that are tables.
    pub fn tables(self) -> Vec<Self> {
        self.forms()
            .into_iter()
            .filter(|form| form.is("object"))
            .collect()
    }

    /// Whether its values have this JSON type.
    pub fn is(self, kind: &str) -> bool {
        self.0["type"] == kind
    }

    /// The keys of a table.
    pub fn keys(self) -> impl Iterator<Item = (&'static str, &'static Value)> {
        let keys = self.0["properties"].as_object().into_iter().flatten();
        keys.map(|(key, schema)| (key.as_str(), schema))
    }

    /// Its required keys.
    pub fn required(self) -> impl Iterator<Item = &'static str> {
        self.list("required").filter_map(Value::as_str)
    }

    /// The `type` that tells a table from others.
    pub fn tag(self) -> Option<&'static str> {
        self.0["properties"]["type"]["const"].as_str()
    }

    /// The description of a part of the same schema.
    #[cfg(test)]
    pub fn description(self, schema: &'static Value) -> String {
        let own = schema["description"].as_str();
        let text = own.or_else(|| self.at(schema).word("description"));
        text.unwrap_or_default().replace('\n', " ")
    }

    /// The same, and what each word that it may be stands for.
    #[cfg(test)]
    pub fn meaning(self, schema: &'static Value) -> String {
        let mut meaning = self.description(schema);
        for form in self.at(schema).forms() {
            let is_choice = !std::ptr::eq(form.0, schema);
            if let Some(word) = form.word("const").filter(|_| is_choice) {
                let text = form.description(form.0);
                let text = text.trim_end_matches('.');
                meaning.push_str(&format!(" `{word}`: {text}."));
            }
        }
        meaning
    }

    /// A bound on a number or on a list's length.
    pub fn bound(self, key: &str) -> Option<f64> {
        self.0[key].as_f64()
    }

    /// The value of the keyword `format` or of a custom keyword.
    pub fn word(self, key: &str) -> Option<&'static str> {
        self.0[key].as_str()
    }

    /// The words that a text may be; empty if any text is allowed.
    pub fn choices(self) -> Vec<&'static str> {
        let words = self.list("enum").chain([&self.0["const"]]);
        words.filter_map(Value::as_str).collect()
    }

    fn list(self, key: &str) -> impl Iterator<Item = &'static Value> + use<> {
        self.0[key].as_array().into_iter().flatten()
    }
}
