"""An offline world in open text: made-up regions, questions in many wordings, documents, and a teacher that errs."""
