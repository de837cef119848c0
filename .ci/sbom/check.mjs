// Validates a bill of materials against the schema of CycloneDX 1.6, strictly: node check.mjs FILE
import { readFileSync } from "node:fs"
import { Spec, Validation } from "@cyclonedx/cyclonedx-library"

const validator = new Validation.JsonStrictValidator(Spec.Version.v1dot6)
const check = async text => await validator.validate(text)
const text = readFileSync(process.argv[2], "utf8")
const problem = await check(text)
if (problem !== null) {
    console.error(problem)
    process.exit(1)
}
if (await check(text.replace('"library"', '"libary"')) === null) {
    console.error("the validator accepts a type that does not exist")
    process.exit(1)
}
console.log(`CycloneDX accepts the bill of ${JSON.parse(text).components.length} modules`)
