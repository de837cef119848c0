// Signs and verifies with the reference library of Standard Webhooks: reads a list of calls in JSON, writes the list of answers.
const { Webhook, WebhookVerificationError } = require("standardwebhooks");

const answers = JSON.parse(require("node:fs").readFileSync(0, "utf8")).map(({ secret, body, id, seconds, headers }) => {
  const webhook = new Webhook(secret);
  if (!headers) return webhook.sign(id, new Date(seconds * 1000), body);
  try {
    webhook.verify(body, headers, { jsonParse: false });
    return "verified";
  } catch (error) {
    if (!(error instanceof WebhookVerificationError)) throw error;
    return error.message;
  }
});
console.log(JSON.stringify(answers));
